// json_bounds(): how deep and how large a JSON text is, seen before a parser takes memory and stack for it.
//
// Pure; any thread.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace ddprun {

struct JsonBounds {
  std::size_t depth = 0;   // of objects and arrays within each other
  std::size_t values = 0;  // objects, arrays and everything in them
};

// Says which bound the text exceeds; nullopt: none. Reads the text once and does not check its syntax:
// the parser of a text within the bounds needs memory for `values` values at most.
std::optional<std::string> beyond_bounds(std::string_view text, const JsonBounds& bounds);

}  // namespace ddprun
