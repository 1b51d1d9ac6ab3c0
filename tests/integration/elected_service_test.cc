// Tests jobs whose agents elect the one that runs the service, with a real etcd.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/joined.h"
#include "tests/integration/meeting_frame.h"
#include "tests/support/etcd_cluster.h"

namespace ddprun::testing_support {
namespace {

using testing::HasSubstr;

class ElectedService : public MeetingTest {
 protected:
  void SetUp() override {
    MeetingTest::SetUp();
    if (const std::string why = EtcdCluster::why_not(); !why.empty()) GTEST_SKIP() << why;
    etcd_.emplace(1);
    for (const HostPort& one : etcd_->endpoints()) endpoints_.push_back(to_text(one));
  }

  std::unique_ptr<ChildProcess> agent(const std::string& nodes, const std::string& script) {
    return start({"--rdzv-backend=etcd-v2", "--rdzv-endpoint=" + ddprun::joined(endpoints_, ","),
                  "--rdzv-id=team/job", "--nnodes=" + nodes, "--max-restarts=2", "--lease=3",
                  "--rdzv-conf=last_call_timeout=0.5", "sh", "-c", script});
  }
  // Starts the agent whose service leads.
  std::unique_ptr<ChildProcess> leader(const std::string& nodes, const std::string& script) {
    auto first = agent(nodes, script);
    EXPECT_TRUE(first->wait_for_err("nodes here")) << first->err();
    return first;
  }
  // Loses the node: all of its processes are killed at once.
  static void lose(const ChildProcess& node) {
    const Tree tree = tree_of(node);
    for (const pid_t pid : {tree.guardian, tree.keeper, tree.agent, tree.worker}) {
      ASSERT_GT(pid, 1);
      ASSERT_EQ(kill(pid, SIGKILL), 0);
    }
  }

  std::optional<EtcdCluster> etcd_;
  std::vector<std::string> endpoints_;
};

const char* const kRestarted =
    "echo started $TORCHELASTIC_RESTART_COUNT of $WORLD_SIZE; "
    "[ $TORCHELASTIC_RESTART_COUNT = 0 ] && exec sleep 600; exit 0";

TEST_F(ElectedService, ASpareTakesThePlaceOfTheLeadersNode) {
  const auto first = leader("2", kRestarted);
  const auto second = agent("2", kRestarted);
  ASSERT_TRUE(first->wait_for_out("started 0 of 2")) << first->err();
  ASSERT_TRUE(second->wait_for_out("started 0 of 2")) << second->err();
  const auto spare = agent("2", kRestarted);
  ASSERT_TRUE(spare->wait_for_err("waiting")) << spare->err();
  lose(*first);
  EXPECT_EQ(second->wait(), 0) << second->err() << spare->err();
  EXPECT_EQ(spare->wait(), 0) << spare->err();
  EXPECT_THAT(second->out(), HasSubstr("started 1 of 2")) << "one restart was used";
  EXPECT_THAT(spare->out(), HasSubstr("started 1 of 2"));
}

TEST_F(ElectedService, AnElasticJobGoesOnWithoutTheLeadersNode) {
  const auto first = leader("1:2", kRestarted);
  const auto second = agent("1:2", kRestarted);
  ASSERT_TRUE(second->wait_for_out("started 0 of 2")) << first->err() << second->err();
  lose(*first);
  EXPECT_EQ(second->wait(), 0) << second->err();
  EXPECT_THAT(second->out(), HasSubstr("started 1 of 1"));
}

TEST_F(ElectedService, ANewJobOfTheSameNameBeginsAnew) {
  for (int run = 0; run < 2; ++run) {
    const auto first = leader("2", "echo started $TORCHELASTIC_RESTART_COUNT");
    const auto second = agent("2", "echo started $TORCHELASTIC_RESTART_COUNT");
    EXPECT_EQ(second->wait(), 0) << second->err();
    EXPECT_EQ(first->wait(), 0) << first->err();
    EXPECT_THAT(second->out(), HasSubstr("started 0"));
  }
}

}  // namespace
}  // namespace ddprun::testing_support
