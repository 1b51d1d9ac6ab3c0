#include "launcher/node_check/core/judgement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ddprun {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

NodeMeasurements healthy() {
  return {.core = std::chrono::milliseconds(3), .memory = 5e9, .loopback = 1e9};
}

LinkMeasurement link(int node, double bytes_per_s) {
  return {
      .node = NodeRank(node), .host = "host" + std::to_string(node), .bytes_per_s = bytes_per_s};
}

std::string judge(std::vector<LinkMeasurement> links, int own, int node_count = 6) {
  return fault_of(links, NodeRank(own), node_count, NodeLimits());
}

TEST(NodeJudgement, FindsNoFaultInAHealthyNodeAndAtTheLimits) {
  EXPECT_EQ(fault_of(healthy(), NodeLimits()), "");
  const NodeLimits limits;
  EXPECT_EQ(fault_of({.core = limits.core,
                      .memory = limits.memory,
                      .loopback = limits.loopback,
                      .throttled = limits.throttled},
                     limits),
            "");
}

TEST(NodeJudgement, NamesTheCheckTheValueAndTheLimit) {
  NodeMeasurements flipped = healthy(), slow = healthy(), stopped = healthy(), narrow = healthy(),
                   full = healthy(), loopback = healthy(), no_loopback = healthy();
  flipped.digest ^= 1;
  EXPECT_EQ(fault_of(flipped, NodeLimits()),
            "core: a known computation gave 17266754969129348397 instead of 17266754969129348396");
  slow.core = std::chrono::milliseconds(81);
  EXPECT_EQ(fault_of(slow, NodeLimits()),
            "core: 81 ms of CPU time for a known computation (limit 50 ms)");
  stopped.throttled = 0.76;
  EXPECT_EQ(fault_of(stopped, NodeLimits()),
            "core: a CPU quota (cpu.max) stopped it for 76 % of the time (limit 25 %)");
  narrow.memory = 310e6;
  EXPECT_EQ(fault_of(narrow, NodeLimits()), "memory: 310 MB/s (limit 500 MB/s)");
  full.disk_error = "write /logs/x: No space left on device";
  EXPECT_EQ(fault_of(full, NodeLimits()), "disk: write /logs/x: No space left on device");
  loopback.loopback = 1.254e6;
  EXPECT_EQ(fault_of(loopback, NodeLimits()), "loopback: 1.25 MB/s (limit 20 MB/s)");
  no_loopback.loopback_error = "refused";
  EXPECT_EQ(fault_of(no_loopback, NodeLimits()), "loopback: refused");
}

TEST(NodeJudgement, TakesTheLimitsThatAreGiven) {
  NodeLimits limits;
  limits.memory = 6e9;
  EXPECT_EQ(fault_of(healthy(), limits), "memory: 5000 MB/s (limit 6000 MB/s)");
}

TEST(NodeJudgement, ASlowLinkIsTheFaultOfTheNodeWhoseLinksAreAllSlow) {
  EXPECT_EQ(judge({}, 0), "");
  EXPECT_EQ(judge({link(2, 1e9), link(0, 1e9)}, 1), "");
  EXPECT_EQ(judge({link(2, 1e6), link(0, 1e9)}, 1), "") << "node 2 is slow";
  EXPECT_EQ(judge({link(2, 1e6), link(0, 2e6)}, 1),
            "link with node 2 (host2): 1.00 MB/s (limit 10 MB/s); slow with node 0 (host0), too");
}

TEST(NodeJudgement, OfTwoNodesWithASlowLinkTheHigherRankGivesWay) {
  EXPECT_EQ(judge({link(1, 1e6), link(1, 1e6)}, 0, 2), "");
  EXPECT_EQ(judge({link(0, 1e6), link(0, 1e6)}, 1, 2),
            "link with node 0 (host0): 1.00 MB/s (limit 10 MB/s); which end is slow is not known, "
            "and the higher node rank gives way");
  EXPECT_EQ(judge({link(0, 1e6), link(0, 1e9)}, 1, 2), "") << "one direction is fast";
}

TEST(NodeJudgement, OfSeveralNodesASingleMeasuredLinkIsNoFault) {
  EXPECT_EQ(judge({link(4, 1e6)}, 5), "");
}

TEST(NodeJudgement, ALinkThatDoesNotWorkIsSlow) {
  LinkMeasurement dead = link(0, 0);
  dead.error = "connection refused";
  EXPECT_THAT(judge({dead}, 1, 2),
              StartsWith("link with node 0 (host0): connection refused (limit"));
}

}  // namespace
}  // namespace ddprun
