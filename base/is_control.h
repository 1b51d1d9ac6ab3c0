// is_control(), in_one_line(): find and replace the characters that could break the line that
// contains them. Pure; any thread.
#pragma once

#include <algorithm>
#include <string>

namespace ddprun {

// Returns whether `c` is an ASCII control character. No byte of a longer UTF-8 character is
// one.
constexpr bool is_control(char c) { return static_cast<unsigned char>(c) < ' ' || c == 0x7f; }

// Returns the text with '?' in place of each control character.
inline std::string in_one_line(std::string text) {
  std::replace_if(text.begin(), text.end(), is_control, '?');
  return text;
}

}  // namespace ddprun
