// split(): cuts a text at a separator. Pure; any thread.
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

namespace ddprun {

// Returns the parts between the separators, as views of the text: one more than there are
// separators.
inline std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (true) {
    const std::size_t at = text.find(separator);
    parts.push_back(text.substr(0, at));
    if (at == std::string_view::npos) return parts;
    text.remove_prefix(at + 1);
  }
}

}  // namespace ddprun
