// Filters text from other programs for a terminal: characters and colours stay; what moves the
// cursor or changes the terminal is removed. Pure; any thread.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace ddprun {

// Returns the length of the colour sequence (SGR, "\x1b[1;31m") that the text begins with. 0:
// it begins with none.
std::size_t colour_length(std::string_view text);

// Returns whether the text begins with one of Unicode's control characters U+0080 to U+009F,
// which terminals treat as escape sequences.
bool is_control_of_utf8(std::string_view text);

// Returns the text with \r, \n, \t and colours, but without other escape sequences and control
// characters.
std::string without_cursor_moves(std::string_view text);

// Returns the text as one line. Tabs and colours stay, and the colours are reset at the end.
// Every other control character becomes '?'.
std::string terminal_line(std::string_view text);

}  // namespace ddprun
