// Tests FailureRate: an address that fails too often is blocked.
#include "rendezvous/auth/core/failure_rate.h"

#include <gtest/gtest.h>

namespace ddprun {
namespace {

using std::chrono::seconds;

class FailureRateTest : public testing::Test {
 protected:
  bool is_blocked(const std::string& address = "a") const {
    return rate_.is_blocked(address, now_);
  }
  FailureRate rate_;
  TimePoint now_{seconds(1000)};
};

TEST_F(FailureRateTest, ABurstPassesAndThenOnePerPause) {
  for (int i = 0; i < FailureRate::kBurst; ++i) {
    EXPECT_FALSE(is_blocked()) << i;
    rate_.note("a", now_);
  }
  EXPECT_TRUE(is_blocked());
  EXPECT_FALSE(is_blocked("b"));
  now_ += FailureRate::kPause;
  EXPECT_FALSE(is_blocked());
  rate_.note("a", now_);
  EXPECT_TRUE(is_blocked());
}

TEST_F(FailureRateTest, MoreFailuresDoNotMakeItLonger) {
  for (int i = 0; i < 10 * FailureRate::kBurst; ++i) rate_.note("a", now_);
  now_ += FailureRate::kPause;
  EXPECT_FALSE(is_blocked());
}

TEST_F(FailureRateTest, ManyAddressesDoNotPushOutOneThatStillFails) {
  for (std::size_t i = 0; i < 3 * FailureRate::kAddresses; ++i) {
    for (int twice = 0; twice < 2; ++twice) rate_.note("peer" + std::to_string(i), now_);
    rate_.note("a", now_);
  }
  EXPECT_TRUE(is_blocked());
}

}  // namespace
}  // namespace ddprun
