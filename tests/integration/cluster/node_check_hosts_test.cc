// Tests --node-check on hosts in network namespaces, of which one has a slow link.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/integration/cluster/several_hosts.h"
#include "tests/support/whole.h"

namespace ddprun {
namespace {

using testing::HasSubstr;
using testing::Not;
using testing_support::Arguments;
using testing_support::is_whole;
using testing_support::SeveralHosts;

class SlowLink : public SeveralHosts {};

TEST_F(SlowLink, GivesWayToASpare) {
  start_hosts(4, true);
  cluster_->limit_rate(1, "20mbit");
  const Arguments options{"--nnodes=3", "--node-check"};
  for (int node = 0; node < 3; ++node) {
    start_node(node, options, "[ $DDPRUN_GENERATION = 0 ] && exec sleep 1000; true");
  }
  ASSERT_TRUE(jobs_[1]->wait_for_err("is not fit: link with node")) << jobs_[1]->err();
  start_node(3, options, "echo spare ran");
  for (int node = 0; node < 4; ++node) EXPECT_EQ(jobs_[node]->wait(), 0) << jobs_[node]->err();
  EXPECT_THAT(jobs_[3]->out(), HasSubstr("spare ran"));
  EXPECT_THAT(jobs_[0]->err(), HasSubstr("node 1 (node1) is not fit: link with node"));
  for (const int node : {0, 2, 3}) {
    EXPECT_THAT(jobs_[node]->err(), Not(HasSubstr("--node-check: "))) << node;
  }
}

TEST_F(SlowLink, IsFoundEachTime) {
  start_hosts(2, true);
  cluster_->limit_rate(1, "20mbit");
  for (int i = 0; i < (is_whole() ? 100 : 2); ++i) {
    for (int node = 0; node < 2; ++node) {
      start_node(node,
                 {"--nnodes=2", "--node-check", "--rdzv-conf=join_timeout=1",
                  "--rdzv-id=job" + std::to_string(i)},
                 "sleep 1000");
    }
    for (int node = 0; node < 2; ++node) EXPECT_EQ(jobs_[node]->wait(), 65) << jobs_[node]->err();
    EXPECT_THAT(jobs_[1]->err(), HasSubstr("is not fit: link with node 0 (node0): ")) << i;
  }
}

TEST_F(SlowLink, HealthyLinksAreFit) {
  start_hosts(3, true);
  for (int i = 0; i < (is_whole() ? 1000 : 5); ++i) {
    for (int node = 0; node < 3; ++node) {
      start_node(node, {"--nnodes=3", "--node-check", "--rdzv-id=job" + std::to_string(i)}, "true");
    }
    for (int node = 0; node < 3; ++node) {
      EXPECT_EQ(jobs_[node]->wait(), 0) << i << ": " << jobs_[node]->err();
      EXPECT_THAT(jobs_[node]->err(), Not(HasSubstr("not fit"))) << i;
    }
  }
}

}  // namespace
}  // namespace ddprun
