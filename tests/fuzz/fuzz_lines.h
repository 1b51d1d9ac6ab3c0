// Inputs of fuzz targets that are read as text: one thing that happens to a line. Pure functions.
#pragma once

#include <string_view>

namespace ddprun {

// Takes the first line off `text`, and returns it without its end.
inline std::string_view take_line(std::string_view& text) {
  const std::string_view line = text.substr(0, text.find('\n'));
  text.remove_prefix(line.size());
  if (!text.empty()) text.remove_prefix(1);
  return line;
}

}  // namespace ddprun
