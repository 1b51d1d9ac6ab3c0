// What text of others may send to a terminal: characters and colours, nothing that moves its cursor or
// changes it. Pure; any thread.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace ddprun {

// Returns the length of the colour sequence (SGR, "\x1b[1;31m") that the text begins with; 0: with none.
std::size_t colour_length(std::string_view text);

// Returns whether the text begins with one of Unicode's control characters U+0080 to U+009F, which
// terminals take for escape sequences.
bool is_control_of_utf8(std::string_view text);

// Returns the text with \r, \n, \t and colours; every other escape sequence and control character is left out.
std::string without_cursor_moves(std::string_view text);

// Returns the text as one line: tabs and colours stay and end with it, every other control character
// becomes '?'.
std::string terminal_line(std::string_view text);

}  // namespace ddprun
