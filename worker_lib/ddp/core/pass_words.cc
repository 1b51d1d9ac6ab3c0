#include "worker_lib/ddp/core/pass_words.h"

#include <cmath>

namespace ddprun {
namespace {

constexpr std::int64_t kEpochsApart = 30;  // a number of five bits

}  // namespace

std::vector<double> PassWords::of_rank(int rank, int ranks, PassCode code, std::int64_t epoch,
                                       const std::vector<bool>& used) {
  std::vector<double> words(count(ranks, 0));
  words[rank] = static_cast<double>(code);
  words[ranks + rank] = epoch < 0 ? 0 : static_cast<double>(1 + epoch % kEpochsApart);
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

bool PassWords::do_epochs_differ() const {
  std::optional<long> first;
  for (int rank = 0; rank < ranks_; ++rank) {
    const auto epoch = number(ranks_ + rank);
    if (!epoch || *epoch == 0) continue;
    if (first && *first != *epoch) return true;
    first = epoch;
  }
  return false;
}

bool PassWords::is_used(std::size_t parameter) const {
  return sums_[count(ranks_, parameter)] != 0;
}

}  // namespace ddprun
