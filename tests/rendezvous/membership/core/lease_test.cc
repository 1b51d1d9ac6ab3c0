#include "rendezvous/membership/core/lease.h"

#include <gtest/gtest.h>

namespace ddprun {
namespace {

TEST(Lease, IsSecondsThatALeaseCanHave) {
  EXPECT_EQ(*parse_lease("0.5"), std::chrono::milliseconds(500));
  EXPECT_EQ(*parse_lease("3600"), std::chrono::seconds(3600));
  for (const char* bad : {"0.4", "0", "3601", "x", ""}) EXPECT_FALSE(parse_lease(bad)) << bad;
}

TEST(Lease, SetsPatienceAndHeartbeats) {
  const LeaseTimes times{.lease = std::chrono::seconds(20), .given_heartbeat = {}};
  EXPECT_EQ(times.patience(), std::chrono::seconds(16));
  EXPECT_EQ(times.heartbeat(), std::chrono::seconds(4));
  EXPECT_TRUE(check_lease(times));
}

TEST(Lease, HeartbeatsMayBeGivenAndMustComeSeveralTimesInIt) {
  const auto with = [](Duration heartbeat) {
    return LeaseTimes{.lease = std::chrono::seconds(8), .given_heartbeat = heartbeat};
  };
  using std::chrono::milliseconds;
  EXPECT_EQ(with(milliseconds(500)).heartbeat(), milliseconds(500));
  EXPECT_EQ(with(milliseconds(500)).patience(), milliseconds(6400)) << "as without";
  EXPECT_TRUE(check_lease(with(milliseconds(160))));
  EXPECT_TRUE(check_lease(with(milliseconds(2000))));
  EXPECT_FALSE(check_lease(with(milliseconds(159))));
  EXPECT_FALSE(check_lease(with(milliseconds(0))));
  ASSERT_FALSE(check_lease(with(milliseconds(2100))));
  EXPECT_EQ(
      check_lease(with(milliseconds(2100))).error().message(),
      "--heartbeat-interval: invalid value '2.1' (with --lease=8 expected seconds from 0.16 to 2)");
}

}  // namespace
}  // namespace ddprun
