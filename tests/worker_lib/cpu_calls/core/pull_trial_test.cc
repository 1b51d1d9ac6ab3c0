#include "worker_lib/cpu_calls/core/pull_trial.h"

#include <gtest/gtest.h>

#include <vector>

namespace ddprun {
namespace {

using std::chrono::microseconds;

constexpr std::size_t kBytes = 100'000;

// Runs a trial of ranks for which pulling and staging take these times. Returns whether they
// settle on pulling.
bool settled(const std::vector<std::pair<Duration, Duration>>& pulled_and_staged) {
  std::vector<PullTrial> ranks(pulled_and_staged.size());
  for (int call = 0; call < PullTrial::kCalls; ++call) {
    const bool pulls = ranks[0].pulls(kBytes);
    const bool settles = ranks[0].is_last(kBytes);
    bool all_are_quicker = true;
    for (const PullTrial& rank : ranks) {
      EXPECT_EQ(rank.pulls(kBytes), pulls) << "call " << call;
      EXPECT_FALSE(rank.is_over(kBytes));
      all_are_quicker = all_are_quicker && rank.is_quicker(kBytes);
    }
    EXPECT_EQ(settles, call == PullTrial::kCalls - 1);
    EXPECT_TRUE(pulls || !settles);
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      if (settles) ranks[i].settle(kBytes, all_are_quicker);
      const auto& [pulled, staged] = pulled_and_staged[i];
      ranks[i].took(kBytes, pulls ? pulled : staged);
    }
  }
  for (const PullTrial& rank : ranks) {
    EXPECT_TRUE(rank.is_over(kBytes));
    EXPECT_EQ(rank.pulls(kBytes), ranks[0].pulls(kBytes));
  }
  return ranks[0].pulls(kBytes);
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
  for (const int time : times) trial.took(kBytes, microseconds(time));
  EXPECT_TRUE(trial.is_last(kBytes));
  EXPECT_TRUE(trial.is_quicker(kBytes));

  PullTrial other;
  const std::vector<int> reversed{2, 1, 5, 7, 800, 900, 5, 7, 5, 7, 5};
  for (const int time : reversed) other.took(kBytes, microseconds(time));
  EXPECT_FALSE(other.is_quicker(kBytes));
}

TEST(PullTrial, EachFactorOfTwoIsAClassOfItsOwn) {
  PullTrial trial;
  for (int call = 0; call < PullTrial::kCalls; ++call) {
    if (trial.is_last(65'536)) trial.settle(65'536, true);
    trial.took(65'536 + static_cast<std::size_t>(call), microseconds(1));
  }
  EXPECT_TRUE(trial.is_over(131'071));
  EXPECT_TRUE(trial.pulls(131'071));
  for (const std::size_t other : {std::size_t{0}, std::size_t{65'535}, std::size_t{131'072}}) {
    EXPECT_FALSE(trial.is_over(other)) << other;
    EXPECT_FALSE(trial.pulls(other)) << other;
  }
}

}  // namespace
}  // namespace ddprun
