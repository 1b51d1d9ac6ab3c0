// Write several texts as one. Pure; any thread.
#pragma once

#include <algorithm>
#include <span>
#include <string>
#include <string_view>
#include <vector>

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

// Returns "a, b and c".
inline std::string joined_with_and(const std::vector<std::string>& texts) {
  std::string all;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    if (i > 0) all += i + 1 == texts.size() ? " and " : ", ";
    all += texts[i];
  }
  return all;
}

// Returns the first `most` texts, and the number of the others: "a, b and 3 more".
inline std::string joined_up_to(const std::vector<std::string>& texts, std::size_t most) {
  const std::size_t shown = std::min(most, texts.size());
  const std::string first = joined(std::span(texts).first(shown));
  const std::size_t rest = texts.size() - shown;
  return rest > 0 ? first + " and " + std::to_string(rest) + " more" : first;
}

}  // namespace ddprun
