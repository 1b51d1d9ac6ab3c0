// Text for people in lines that are not too long. Pure; any thread.
#pragma once

#include <cstddef>
#include <string>

namespace ddprun {

// Breaks `words` so that no line is longer than `width`, where a word is not; further lines begin
// with `indent` spaces, as many as stand in front of the first. What others have said (a service, the
// environment) goes to a terminal: control characters become '?'.
std::string wrapped(const std::string& words, std::size_t indent, std::size_t width);

}  // namespace ddprun
