#include "rendezvous/protocol/core/progress.h"

#include <gtest/gtest.h>

#include <limits>

namespace ddprun {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::seconds;

constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kLeast = std::numeric_limits<std::int64_t>::min();

std::optional<Duration> left(std::int64_t step, std::int64_t total, double rate) {
  return time_left({.step = step, .total_steps = total, .steps_per_second = rate});
}

TEST(Progress, TheRestTakesAsLongAsTheRateSays) {
  EXPECT_EQ(left(1200, 10'000, 4), seconds(2200));
  EXPECT_EQ(left(0, 10, 0.001), seconds(10'000));
  EXPECT_EQ(left(-10, 10, 2), seconds(10));
}

TEST(Progress, NothingIsSaidOfWhatIsNotKnown) {
  const Progress known{.step = 1, .total_steps = 2, .steps_per_second = 1.0};
  EXPECT_TRUE(time_left(known));
  for (const auto forget :
       {+[](Progress& of) { of.step.reset(); }, +[](Progress& of) { of.total_steps.reset(); },
        +[](Progress& of) { of.steps_per_second.reset(); }}) {
    Progress less = known;
    forget(less);
    EXPECT_EQ(time_left(less), std::nullopt);
  }
}

TEST(Progress, ItIsNeverNegativeAndNeverNonsense) {
  using Limits = std::numeric_limits<double>;
  EXPECT_EQ(left(10, 10, 1), std::nullopt) << "no step is left";
  EXPECT_EQ(left(11, 10, 1), std::nullopt) << "it does more than it said";
  for (const double rate : {0.0, -1.0, Limits::quiet_NaN(), -Limits::infinity()}) {
    EXPECT_EQ(left(1, 10, rate), std::nullopt) << rate;
  }
  EXPECT_EQ(left(1, 10, Limits::infinity()), Duration(0));
  EXPECT_EQ(left(1, 10, Limits::denorm_min()), std::nullopt) << "longer than any clock";
  EXPECT_EQ(left(kLeast, kMost, 1), std::nullopt);
  EXPECT_EQ(left(kMost, kLeast, 1), std::nullopt);
  EXPECT_GT(left(kLeast, kMost, 1e15), seconds(18'000));
}

TEST(Progress, TheTextHasWhatIsKnown) {
  EXPECT_EQ(progress_text({}), "");
  EXPECT_EQ(progress_text({.total_steps = 7, .steps_per_second = 2.0}), "");
  EXPECT_EQ(progress_text({.step = 999}), "step 999");
  EXPECT_EQ(progress_text({.step = 1200, .total_steps = 10'000}), "step 1,200 of 10,000");
  EXPECT_EQ(progress_text({.step = kLeast, .total_steps = 123'456}),
            "step -9,223,372,036,854,775,808 of 123,456");
  EXPECT_EQ(progress_text({.step = -100, .steps_per_second = 12.5}), "step -100, 12.5 steps/s");
  Progress all{.step = 1200, .total_steps = 10'000, .steps_per_second = 3.4};
  all.left = time_left(all);
  EXPECT_EQ(progress_text(all), "step 1,200 of 10,000, 3.4 steps/s, about 43 min left");
}

TEST(Progress, RatesAndTimesHaveTwoOrThreeDigits) {
  const auto rate = [](double per_second) {
    return progress_text({.step = 1, .steps_per_second = per_second});
  };
  EXPECT_EQ(rate(0), "step 1, 0.0 steps/s");
  EXPECT_EQ(rate(0.0333), "step 1, 0.033 steps/s");
  EXPECT_EQ(rate(1.06), "step 1, 1.1 steps/s");
  const auto about = [](Duration left) { return progress_text({.step = 1, .left = left}); };
  EXPECT_EQ(about(milliseconds(900)), "step 1, about 0 s left");
  EXPECT_EQ(about(seconds(99)), "step 1, about 99 s left");
  EXPECT_EQ(about(seconds(100)), "step 1, about 1 min left");
  EXPECT_EQ(about(minutes(100)), "step 1, about 1 h 40 min left");
  EXPECT_EQ(about(hours(48) + hours(3)), "step 1, about 2 d 3 h left");
}

}  // namespace
}  // namespace ddprun
