// is_control(): finds the characters that could break the line that contains them. Pure; any
// thread.
#pragma once

namespace ddprun {

// Returns whether `c` is an ASCII control character. No byte of a longer UTF-8 character is
// one.
constexpr bool is_control(char c) { return static_cast<unsigned char>(c) < ' ' || c == 0x7f; }

}  // namespace ddprun
