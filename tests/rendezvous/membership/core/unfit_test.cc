// Tests of nodes that --node-check has found unfit.
#include <gtest/gtest.h>

#include "base/exit_codes.h"
#include "tests/rendezvous/membership/core/fixture.h"

namespace ddprun {
namespace {

using std::chrono::seconds;
using testing::HasSubstr;

class Unfit : public testing_support::MembershipFixture {
 protected:
  static constexpr const char* kFault = "memory: 1 MB/s (limit 500 MB/s)";

  AgentStatus unfit_status(int generation) {
    return {.phase = AgentPhase::kIdle,
            .generation = Generation(generation),
            .store_port = 4001,
            .unfit = kFault};
  }
  void fail_check(const std::string& host, int generation) {
    take(job_->status("id-" + host, unfit_status(generation), now_));
  }
  bool has_place(const std::string& host) {
    return job_->members().at("id-" + host).assignment.has_value();
  }
};

TEST_F(Unfit, ASpareTakesThePlaceAndNoBudgetIsUsed) {
  start({2, 2}, 0);
  for (const char* host : {"a", "b", "c"}) join(host);
  say("a", AgentPhase::kRunning, 0);
  fail_check("b", 0);
  ASSERT_TRUE(received<Stop>("a"));
  EXPECT_EQ(received<Stop>("a")->reason, std::string("node 1 (b) is not fit: ") + kFault);
  say("a", AgentPhase::kIdle, 0);
  ASSERT_TRUE(received<Assignment>("a") && received<Assignment>("c"));
  EXPECT_EQ(received<Assignment>("c")->generation, Generation(1));
  EXPECT_EQ(received<Assignment>("c")->node_rank, NodeRank(1));
  EXPECT_THAT(received<Assignment>("a")->reason, HasSubstr("node 1 (b) is not fit: "));
  EXPECT_EQ(received<Assignment>("a")->restart_count, 0);
  ASSERT_TRUE(received<Assignment>("a")->failure);
  EXPECT_EQ(received<Assignment>("a")->failure->ends.front().loss, NodeLoss::kUnfit);
  ASSERT_TRUE(received<Wait>("b"));
  EXPECT_EQ(received<Wait>("b")->reason, std::string("this node is not fit: ") + kFault);
  EXPECT_THAT(log_, HasSubstr("node 1 (b) is not fit: "));
  EXPECT_EQ(counted_.restarts, 0);
  EXPECT_EQ(job_->restarts_used(), 0);
}

TEST_F(Unfit, WithoutASpareTheJobWaitsAndEndsWithTheReason) {
  start({2, 2}, 3);
  join("a");
  join("b");
  say("a", AgentPhase::kRunning, 0);
  fail_check("b", 0);
  say("a", AgentPhase::kIdle, 0);
  ASSERT_TRUE(received<Wait>("a"));
  EXPECT_EQ(received<Wait>("a")->reason,
            std::string("2 of 2 nodes here: a, b; not fit: b (") + kFault + ")");
  beating_ = {"a", "b"};
  pass(seconds(601));
  ASSERT_TRUE(received<End>("a"));
  EXPECT_EQ(received<End>("a")->verdict.exit_code, to_int(ExitCode::kJoinTimeout));
  EXPECT_THAT(received<End>("a")->verdict.headline, HasSubstr("not fit: b (memory"));
}

TEST_F(Unfit, AnElasticJobGoesOnWithTheOthers) {
  start({1, 2}, 0);
  join("a");
  join("b");
  say("a", AgentPhase::kRunning, 0);
  fail_check("b", 0);
  say("a", AgentPhase::kIdle, 0);
  ASSERT_TRUE(received<Assignment>("a"));
  EXPECT_EQ(received<Assignment>("a")->world_size, 1);
  say("a", AgentPhase::kRunning, 1);
  EXPECT_EQ(job_->phase(), JobPhase::kRunning) << "the unfit node does not join it";
  EXPECT_EQ(job_->generation(), Generation(1));
}

TEST_F(Unfit, AJobOfOneNodeWithoutOthersEnds) {
  start({1, 1}, 3);
  join("a");
  fail_check("a", 0);
  ASSERT_TRUE(received<End>("a"));
  const Verdict& verdict = received<End>("a")->verdict;
  EXPECT_EQ(verdict.exit_code, to_int(ExitCode::kNodeLost));
  EXPECT_EQ(verdict.not_restarted_because, "the job has no other node");
  EXPECT_THAT(verdict.headline, HasSubstr(std::string("node 0 (a) is not fit: ") + kFault));
}

TEST_F(Unfit, AllNodesThatAreNotFitAreTakenOutTogether) {
  start({2, 2}, 0);
  for (const char* host : {"a", "b", "c", "d"}) join(host);
  fail_check("a", 0);
  fail_check("b", 0);
  ASSERT_TRUE(received<Assignment>("c") && received<Assignment>("d"));
  EXPECT_FALSE(has_place("a") || has_place("b"));
  EXPECT_EQ(received<Assignment>("c")->restart_count, 0);
}

TEST_F(Unfit, AFailureOfAWorkerBeforeItStillUsesBudget) {
  start({2, 2}, 1);
  for (const char* host : {"a", "b", "c"}) join(host);
  say("a", AgentPhase::kIdle, 0, {killed(0, std::chrono::milliseconds(50))});
  fail_check("b", 0);
  ASSERT_TRUE(received<Assignment>("a"));
  EXPECT_EQ(received<Assignment>("a")->restart_count, 1);
  EXPECT_THAT(received<Assignment>("a")->reason, HasSubstr("was killed by SIGKILL"));
  EXPECT_FALSE(has_place("b"));
}

TEST_F(Unfit, ItIsNotTakenBackAfterItsConnectionBroke) {
  start({1, 2}, 0);
  join("a");
  join("b");
  say("a", AgentPhase::kRunning, 0);
  fail_check("b", 0);
  say("a", AgentPhase::kIdle, 0);
  job_->disconnected("id-b");
  Hello again = hello("b");
  again.status = unfit_status(0);
  take(job_->joined(again, false, now_));
  say("a", AgentPhase::kRunning, 1);
  EXPECT_EQ(job_->generation(), Generation(1));
  EXPECT_FALSE(has_place("b"));
  ASSERT_TRUE(received<Wait>("b"));
}

TEST_F(Unfit, ItMayLeaveWithoutAnEndOfTheJob) {
  start({2, 2}, 0);
  for (const char* host : {"a", "b", "c"}) join(host);
  say("a", AgentPhase::kRunning, 0);
  fail_check("b", 0);
  say("a", AgentPhase::kIdle, 0);
  say("a", AgentPhase::kRunning, 1);
  say("c", AgentPhase::kRunning, 1);
  take(job_->left("id-b", Leave{.signal = SIGTERM}, now_));
  EXPECT_EQ(job_->phase(), JobPhase::kRunning);
}

}  // namespace
}  // namespace ddprun
