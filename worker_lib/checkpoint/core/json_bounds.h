// Checks how deep and how large a JSON text is, before a parser allocates memory and stack for
// it.
//
// Pure; any thread.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace ddprun {

struct JsonBounds {
  std::size_t depth = 0;   // of nested objects and arrays
  std::size_t values = 0;  // objects, arrays and all values in them
};

// Returns the bound that the text exceeds; nullopt: none. Reads the text once and does not check
// its syntax. For a text within the bounds, the parser needs memory for at most `values` values.
std::optional<std::string> beyond_bounds(std::string_view text, const JsonBounds& bounds);

}  // namespace ddprun
