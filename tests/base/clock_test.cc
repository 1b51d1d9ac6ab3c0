#include "base/clock.h"

#include <gtest/gtest.h>

namespace ddprun {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;
using std::chrono::seconds;

TEST(Clock, ATimespecHasWholeSecondsAndTheRestInNanoseconds) {
  const timespec both = to_timespec(seconds(3) + nanoseconds(7));
  EXPECT_EQ(both.tv_sec, 3);
  EXPECT_EQ(both.tv_nsec, 7);
  EXPECT_EQ(to_timespec(Duration::zero()).tv_nsec, 0);
}

TEST(Clock, TheNanosecondsOfANegativeTimespecArePositive) {
  const timespec past = to_timespec(-milliseconds(1500));
  EXPECT_EQ(past.tv_sec, -2);
  EXPECT_EQ(past.tv_nsec, 500'000'000);
}

TEST(Clock, ANegativeDurationHasTheUnitOfItsSize) {
  EXPECT_EQ(to_text(-seconds(1)), "-1.0 s");
  EXPECT_EQ(to_text(-milliseconds(250)), "-250 ms");
  EXPECT_EQ(to_text(Duration::zero()), "0 us");
}

}  // namespace
}  // namespace ddprun
