// ChosenEpoch: what a sampler's set_epoch() chose, and the comparison of these choices over ranks.
//
// A rank may have several samplers, as one for training and one for evaluation, and may choose
// their epochs in another order than the other ranks. So ranks are compared by what any of their
// samplers chose, not only by the last choice.
//
// Pure functions; any thread.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace ddprun {

struct ChosenEpoch {
  std::int64_t epoch = 0;
  std::string sampler;  // the same text on every rank for the same sampler
  bool operator==(const ChosenEpoch&) const = default;
};

// Of one rank: the last choice of each sampler, newest first. Empty: nothing to compare.
using ChosenEpochs = std::vector<ChosenEpoch>;

// Returns the ranks by their epoch; empty if no two ranks contradict each other. Two ranks do if
// neither has a sampler that chose what is newest on the other. Two ranks without a common sampler
// do if neither has any choice of the other's newest epoch. Ranks without a choice are left out.
std::map<std::int64_t, std::vector<int>> ranks_by_epoch(const std::vector<ChosenEpochs>& ranks);

}  // namespace ddprun
