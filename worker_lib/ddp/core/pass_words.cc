#include "worker_lib/ddp/core/pass_words.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

namespace ddprun {
namespace {

double word_of(const ChosenEpochs& epochs) {
  constexpr std::int64_t kEpochsApart = 30;  // a number of five bits
  if (epochs.empty()) return 0;
  const std::int64_t newest = epochs.front().epoch;
  const auto word = static_cast<double>(1 + newest % kEpochsApart);
  const bool is_sure =
      std::ranges::all_of(epochs, [&](const ChosenEpoch& one) { return one.epoch == newest; });
  return is_sure ? word : -word;
}

}  // namespace

std::vector<double> PassWords::of_rank(int rank, int ranks, PassCode code,
                                       const ChosenEpochs& epochs, const std::vector<bool>& used) {
  std::vector<double> words(count(ranks, 0));
  words[rank] = static_cast<double>(code);
  words[ranks + rank] = word_of(epochs);
  for (const bool one : used) words.push_back(one ? 1 : 0);
  return words;
}

std::optional<long> PassWords::number(std::size_t i) const {
  if (!std::isfinite(sums_[i])) return std::nullopt;
  return std::lround(sums_[i]);
}

std::optional<int> PassWords::missing_rank() const {
  for (int rank = 0; rank < ranks_; ++rank) {
    const auto code = number(rank);
    if (!code || *code < static_cast<long>(PassCode::kComplete) ||
        *code > static_cast<long>(PassCode::kGivenUp))
      return rank;
  }
  return std::nullopt;
}

PassCode PassWords::code(int rank) const { return static_cast<PassCode>(std::lround(sums_[rank])); }

bool PassWords::do_epochs_differ(Ranks which) const {
  std::optional<long> first;
  for (int rank = 0; rank < ranks_; ++rank) {
    const auto word = number(ranks_ + rank);
    if (!word || *word == 0 || (which == Ranks::kSure && *word < 0)) continue;
    const long epoch = std::abs(*word);
    if (first && *first != epoch) return true;
    first = epoch;
  }
  return false;
}

bool PassWords::is_used(std::size_t parameter) const {
  return sums_[count(ranks_, parameter)] != 0;
}

}  // namespace ddprun
