#include "launcher/agent/core/node_progress.h"

#include <algorithm>
#include <utility>

namespace ddprun {

void NodeProgress::generation_began(TimePoint now) {
  generation_since_ = now;
  suspended_for_ = {};
  slow_.clear();
  pause_ = kFirstPause;
}

void NodeProgress::resumed(TimePoint now) {
  suspended_for_ = suspended_for(now);
  suspended_since_.reset();
}

Duration NodeProgress::suspended_for(TimePoint now) const {
  return suspended_for_ + (suspended_since_ ? now - *suspended_since_ : Duration{});
}

void NodeProgress::see_step(std::optional<std::int64_t> step) {
  if (step) highest_step_ = std::max(highest_step_.value_or(0), *step);
}

void NodeProgress::mark_slow(std::vector<RankRow>& rows) const {
  for (RankRow& row : rows) {
    const auto slow = std::ranges::find(slow_, row.local_rank, &SlowRank::local_rank);
    if (slow != slow_.end()) row.slow = slow->cost;
  }
}

Duration NodeProgress::next_pause() {
  return std::exchange(pause_, std::min(pause_ * 2, kLongestPause));
}

}  // namespace ddprun
