// Makes texts of workers fit for a place in a row of a terminal. Pure; any thread.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace ddprun {

// Returns the text with '?' in place of each control character and of each byte that is not UTF-8.
std::string printable_text(std::string_view text);

// Returns how many characters a text of printable_text() has.
std::size_t width_of(std::string_view text);

// Returns as many first characters of the text as fit in `width`. A text that is cut ends with '~'.
std::string cut_to(std::string_view text, std::size_t width);

}  // namespace ddprun
