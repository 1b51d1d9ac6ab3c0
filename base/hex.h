// to_hex(): converts bytes to text. Pure; any thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace ddprun {

// Returns two lower-case digits for each byte.
inline std::string to_hex(std::span<const std::uint8_t> bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  text.reserve(2 * bytes.size());
  for (const std::uint8_t byte : bytes) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

}  // namespace ddprun
