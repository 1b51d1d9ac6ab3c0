// Helpers for fuzz targets whose input is text with one event per line. Pure functions.
#pragma once

#include <string_view>

namespace ddprun {

// Removes the first line from `text` and returns it without its line end.
inline std::string_view take_line(std::string_view& text) {
  const std::string_view line = text.substr(0, text.find('\n'));
  text.remove_prefix(line.size());
  if (!text.empty()) text.remove_prefix(1);
  return line;
}

}  // namespace ddprun
