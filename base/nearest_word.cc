#include "base/nearest_word.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace ddprun {

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t substitute = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substitute});
    }
  }
  return row.back();
}

std::string nearest_word(std::string_view typed, std::span<const std::string> words) {
  constexpr std::size_t kMostErrors = 3;
  constexpr std::size_t kLongBeginning = 6;
  std::string nearest;
  // A short word has little left after a few changes, so fewer are allowed.
  std::size_t best = std::min(kMostErrors, typed.size() / 2) + 1;
  for (const std::string& word : words) {
    const bool is_beginning = typed.size() >= 2 && word.starts_with(typed);
    std::size_t distance = is_beginning ? 1 : edit_distance(typed, word);
    if (typed.size() >= kLongBeginning) {
      const std::size_t of_beginning = edit_distance(typed, word.substr(0, typed.size()));
      distance = std::min(distance, of_beginning + 1);
    }
    if (distance >= best) continue;
    nearest = word;
    best = distance;
  }
  return nearest;
}

std::string guess_at_option(std::string_view typed, std::span<const std::string> names,
                            std::string_view otherwise) {
  typed.remove_prefix(std::min(typed.find_first_not_of('-'), typed.size()));
  const std::string nearest = nearest_word(typed, names);
  return nearest.empty() ? std::string(otherwise) : ": did you mean --" + nearest + "?";
}

}  // namespace ddprun
