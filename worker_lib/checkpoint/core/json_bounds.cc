#include "worker_lib/checkpoint/core/json_bounds.h"

#include "base/concat.h"

namespace ddprun {

std::optional<std::string> beyond_bounds(std::string_view text, const JsonBounds& bounds) {
  std::size_t depth = 0;
  std::size_t values = 1;
  for (std::size_t at = 0; at < text.size(); ++at) {
    switch (text[at]) {
      case '"':
        for (++at; at < text.size() && text[at] != '"'; ++at)
          if (text[at] == '\\') ++at;
        break;
      case '[':
      case '{':
        ++values;
        if (++depth > bounds.depth)
          return concat("it is nested deeper than ", bounds.depth, " levels");
        break;
      case ']':
      case '}':
        if (depth > 0) --depth;
        break;
      case ',':
        if (++values > bounds.values)
          return concat("it holds more than ", bounds.values, " values");
        break;
      default: break;
    }
  }
  return std::nullopt;
}

}  // namespace ddprun
