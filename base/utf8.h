// Finds the characters of UTF-8 text. Pure; any thread.
#pragma once

#include <cstddef>
#include <string_view>

namespace ddprun {

// Returns the bytes of the first character of the text; 0: the text does not begin with UTF-8.
// REQUIRES: the text is not empty.
inline std::size_t character_bytes(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  if (byte(0) < 0x80) return 1;
  if (byte(0) < 0xC2 || byte(0) > 0xF4) return 0;
  const std::size_t length = byte(0) < 0xE0 ? 2 : byte(0) < 0xF0 ? 3 : 4;
  if (text.size() < length) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
  }
  // Overlong forms, surrogates, and code points above U+10FFFF.
  const bool forbidden = (byte(0) == 0xE0 && byte(1) < 0xA0) ||
                         (byte(0) == 0xED && byte(1) > 0x9F) ||
                         (byte(0) == 0xF0 && byte(1) < 0x90) || (byte(0) == 0xF4 && byte(1) > 0x8F);
  return forbidden ? 0 : length;
}

// Returns whether the whole text is UTF-8.
inline bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const std::size_t length = character_bytes(text);
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

}  // namespace ddprun
