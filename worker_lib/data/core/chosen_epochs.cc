#include "worker_lib/data/core/chosen_epochs.h"

#include <algorithm>
#include <cstddef>

namespace ddprun {
namespace {

const ChosenEpoch* choice_of(const ChosenEpochs& rank, const std::string& sampler) {
  const auto found = std::ranges::find(rank, sampler, &ChosenEpoch::sampler);
  return found == rank.end() ? nullptr : &*found;
}

bool do_contradict(const ChosenEpochs& a, const ChosenEpochs& b) {
  if (a.empty() || b.empty() || a.front().epoch == b.front().epoch) return false;
  // Ranks without a common sampler, as with data of their own, are compared by epoch alone.
  if (std::ranges::none_of(a, [&](const ChosenEpoch& one) { return choice_of(b, one.sampler); }))
    return !std::ranges::count(a, b.front().epoch, &ChosenEpoch::epoch) &&
           !std::ranges::count(b, a.front().epoch, &ChosenEpoch::epoch);
  return !std::ranges::count(a, b.front()) && !std::ranges::count(b, a.front());
}

// Returns the newest sampler of one rank that the other one has, too; else the newest one.
const std::string& common_sampler(const ChosenEpochs& a, const ChosenEpochs& b) {
  if (!choice_of(b, a.front().sampler) && choice_of(a, b.front().sampler)) return b.front().sampler;
  return a.front().sampler;
}

// Returns a sampler of which two ranks contradict each other, or null.
const std::string* find_contradiction(const std::vector<ChosenEpochs>& ranks) {
  std::vector<const ChosenEpochs*> different;  // most ranks are like another one
  for (const ChosenEpochs& rank : ranks) {
    if (std::ranges::any_of(different, [&](const auto* one) { return *one == rank; })) continue;
    for (const ChosenEpochs* other : different)
      if (do_contradict(*other, rank)) return &common_sampler(*other, rank);
    different.push_back(&rank);
  }
  return nullptr;
}

}  // namespace

std::map<std::int64_t, std::vector<int>> ranks_by_epoch(const std::vector<ChosenEpochs>& ranks) {
  std::map<std::int64_t, std::vector<int>> result;
  const std::string* sampler = find_contradiction(ranks);
  if (!sampler) return result;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    if (ranks[rank].empty()) continue;
    const ChosenEpoch* choice = choice_of(ranks[rank], *sampler);
    result[(choice ? *choice : ranks[rank].front()).epoch].push_back(static_cast<int>(rank));
  }
  return result;
}

}  // namespace ddprun
