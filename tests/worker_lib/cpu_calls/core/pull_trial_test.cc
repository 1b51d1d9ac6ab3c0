#include "worker_lib/cpu_calls/core/pull_trial.h"

#include <gtest/gtest.h>

#include <vector>

namespace ddprun {
namespace {

using std::chrono::microseconds;

// Runs a trial of ranks for which pulling and staging take these times. Returns whether they
// settle on pulling.
bool settled(const std::vector<std::pair<Duration, Duration>>& pulled_and_staged) {
  std::vector<PullTrial> ranks(pulled_and_staged.size());
  for (int call = 0; call < PullTrial::kCalls; ++call) {
    const bool pulls = ranks[0].pulls();
    const bool settles = ranks[0].is_last();
    bool all_are_quicker = true;
    for (const PullTrial& rank : ranks) {
      EXPECT_EQ(rank.pulls(), pulls) << "call " << call;
      EXPECT_FALSE(rank.is_over());
      all_are_quicker = all_are_quicker && rank.is_quicker();
    }
    EXPECT_EQ(settles, call == PullTrial::kCalls - 1);
    EXPECT_TRUE(pulls || !settles);
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      if (settles) ranks[i].settle(all_are_quicker);
      const auto& [pulled, staged] = pulled_and_staged[i];
      ranks[i].took(pulls ? pulled : staged);
    }
  }
  for (const PullTrial& rank : ranks) {
    EXPECT_TRUE(rank.is_over());
    EXPECT_EQ(rank.pulls(), ranks[0].pulls());
  }
  return ranks[0].pulls();
}

TEST(PullTrial, TheQuickerWayIsChosen) {
  EXPECT_TRUE(settled({{microseconds(5), microseconds(9)}, {microseconds(6), microseconds(8)}}));
  EXPECT_FALSE(settled({{microseconds(9), microseconds(5)}, {microseconds(8), microseconds(6)}}));
}

TEST(PullTrial, OneRankThatIsSlowerByPullingIsEnoughToStage) {
  EXPECT_FALSE(settled({{microseconds(5), microseconds(9)}, {microseconds(7), microseconds(6)}}));
}

TEST(PullTrial, TheFirstCallOfEachWayAndDisturbedOnesDoNotCount) {
  PullTrial trial;
  // Pulling takes 5 us, staging 7 us. One of each is disturbed, and the first two are quicker
  // than any later one.
  const std::vector<int> times{1, 2, 7, 5, 900, 800, 7, 5, 7, 5, 7};
  for (const int time : times) trial.took(microseconds(time));
  EXPECT_TRUE(trial.is_last());
  EXPECT_TRUE(trial.is_quicker());

  PullTrial other;
  const std::vector<int> reversed{2, 1, 5, 7, 800, 900, 5, 7, 5, 7, 5};
  for (const int time : reversed) other.took(microseconds(time));
  EXPECT_FALSE(other.is_quicker());
}

TEST(PullTrial, EachFactorOfTwoIsAClassOfItsOwn) {
  PullTrials trials;
  for (int call = 0; call < PullTrial::kCalls; ++call) {
    PullTrial& trial = trials.of(65'536 + static_cast<std::size_t>(call));
    if (trial.is_last()) trial.settle(true);
    trial.took(microseconds(1));
  }
  EXPECT_TRUE(trials.of(131'071).is_over());
  EXPECT_TRUE(trials.of(131'071).pulls());
  for (const std::size_t other : {std::size_t{0}, std::size_t{65'535}, std::size_t{131'072}}) {
    EXPECT_FALSE(trials.of(other).is_over()) << other;
    EXPECT_FALSE(trials.of(other).pulls()) << other;
  }
}

}  // namespace
}  // namespace ddprun
