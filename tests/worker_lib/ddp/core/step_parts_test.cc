#include "worker_lib/ddp/core/step_parts.h"

#include <gtest/gtest.h>

namespace ddprun {
namespace {

using std::chrono::milliseconds;

TEST(StepMeans, AreSharesOfTheWholeStep) {
  const StepShares shares = StepMeans().add({.whole = milliseconds(200),
                                             .data = milliseconds(100),
                                             .forward = milliseconds(20),
                                             .backward = milliseconds(40),
                                             .communication = milliseconds(10),
                                             .checkpoint = milliseconds(2)});
  EXPECT_EQ(
      shares,
      (StepShares{.data = 50, .forward = 10, .backward = 20, .communication = 5, .checkpoint = 1}));
}

TEST(StepMeans, WithoutALoaderDataIsNotKnown) {
  StepMeans means;
  EXPECT_EQ(means.add({.whole = milliseconds(10)}).data, std::nullopt);
  EXPECT_EQ(means.add({.whole = milliseconds(10), .data = Duration()}).data, 0);
}

TEST(StepMeans, WaitsOfOtherThreadsCountAsFarAsTheStepHasTimeLeft) {
  const StepShares shares = StepMeans().add({.whole = milliseconds(100),
                                             .data = milliseconds(1000),
                                             .forward = milliseconds(60),
                                             .checkpoint = milliseconds(30)});
  EXPECT_EQ(shares, (StepShares{.data = 10, .forward = 60, .checkpoint = 30}));
}

TEST(StepMeans, NonsenseIsNoShare) {
  EXPECT_EQ(StepMeans().add({}), StepShares());
  EXPECT_EQ(StepMeans().add({.whole = -milliseconds(5),
                             .data = -milliseconds(5),
                             .forward = milliseconds(1),
                             .checkpoint = -milliseconds(5)}),
            (StepShares{.data = 0, .forward = 100}));
}

TEST(StepMeans, ACheckpointNowAndThenHasTheShareThatItCosts) {
  StepMeans means;
  StepShares shares;
  // Each 16th of these steps has a checkpoint that takes as long as 16 steps.
  for (int step = 0; step < 160; ++step) {
    const Duration checkpoint = step % 16 == 0 ? milliseconds(160) : milliseconds(0);
    shares = means.add({.whole = milliseconds(10) + checkpoint,
                        .forward = milliseconds(10),
                        .checkpoint = checkpoint});
    EXPECT_NEAR(shares.forward + shares.checkpoint, 100, 1e-6);
    if (step < 32) continue;
    EXPECT_GT(shares.checkpoint, 35) << step;
    EXPECT_LT(shares.checkpoint, 65) << step;
  }
}

TEST(StepMeans, ForgetWhatIsLongOver) {
  StepMeans means;
  for (int i = 0; i < 20; ++i) means.add({.whole = milliseconds(9), .data = milliseconds(9)});
  StepShares shares;
  for (int i = 0; i < 100; ++i)
    shares = means.add({.whole = milliseconds(9), .data = Duration(), .backward = milliseconds(9)});
  EXPECT_GT(shares.backward, 99);
}

}  // namespace
}  // namespace ddprun
