// Wraps text for people into lines of limited width. Pure; any thread.
#pragma once

#include <cstddef>
#include <string>

namespace ddprun {

// Breaks `words` so that no line is longer than `width`, unless a single word is. Further lines
// begin with `indent` spaces; the first line is taken to stand after as many. Text from a
// service or from the environment goes to a terminal, so control characters become '?'.
std::string wrapped(const std::string& words, std::size_t indent, std::size_t width);

}  // namespace ddprun
