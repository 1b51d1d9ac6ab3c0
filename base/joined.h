// joined(): writes several texts as one. Pure; any thread.
#pragma once

#include <string>
#include <string_view>

namespace ddprun {

// Returns "a, b, c".
template <class Texts>
std::string joined(const Texts& texts, std::string_view between = ", ") {
  std::string all;
  std::string_view before;
  for (const auto& text : texts) {
    all += before;
    all += text;
    before = between;
  }
  return all;
}

}  // namespace ddprun
