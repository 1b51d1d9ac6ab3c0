#include "rendezvous/core/lease.h"

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
  const auto with = [](const char* heartbeat) {
    return LeaseTimes{.lease = std::chrono::seconds(8),
                      .given_heartbeat = *parse_heartbeat(heartbeat)};
  };
  EXPECT_EQ(with("0.5").heartbeat(), std::chrono::milliseconds(500));
  EXPECT_EQ(with("0.5").patience(), std::chrono::milliseconds(6400)) << "as without";
  EXPECT_TRUE(check_lease(with("2")));
  ASSERT_FALSE(check_lease(with("2.1")));
  EXPECT_EQ(
      check_lease(with("2.1")).error().message(),
      "--heartbeat-interval: with --lease=8 heartbeats must come every 2 s or more often, not "
      "every 2.1 s");
  for (const char* bad : {"0.01", "901", "x", ""}) EXPECT_FALSE(parse_heartbeat(bad)) << bad;
}

}  // namespace
}  // namespace ddprun
