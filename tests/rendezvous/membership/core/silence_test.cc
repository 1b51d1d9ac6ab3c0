#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

#include "base/exit_codes.h"
#include "tests/rendezvous/membership/core/fixture.h"

namespace ddprun {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

// MembershipSilence: a job of three nodes. The service runs in the agent of node0.
class MembershipSilence : public testing_support::MembershipFixture {
 protected:
  void SetUp() override {
    start({3, 3}, 3);
    take(job_->joined(hello("node0"), true, now_));
    join("node1");
    join("node2");
    for (const char* host : {"node0", "node1", "node2"}) say(host, AgentPhase::kRunning, 0);
    live(seconds(30));
  }

  // Brings back a node whose agent has lost patience and ended its workers.
  void come_back(const std::string& host, std::vector<WorkerEnd> ends = {}) {
    take(job_->joined(hello_again(host, AgentPhase::kIdle, 0, std::move(ends)), false, now_));
  }

  WorkerEnd failed(int rank, const std::string& host, Duration age) {
    WorkerEnd end{.kind = EndKind::kExited, .code = 1};
    end.rank = Rank(rank);
    end.node_rank = NodeRank(rank);
    end.host = host;
    end.age = age;
    return end;
  }

  // Returns the reason for which generation 1 was begun.
  std::string reason() {
    const Assignment* next = received<Assignment>("node0");
    return next && next->generation == Generation(1) ? next->reason : "generation 1 was not formed";
  }
};

TEST_F(MembershipSilence, ACutOffNodeIsBlamedRatherThanWhoNoticedItFirst) {
  job_->disconnected("id-node2");
  now_ += milliseconds(4500);  // node2 is silent; the others are heard
  job_->heard("id-node0", now_);
  job_->heard("id-node1", now_);
  say("node1", AgentPhase::kIdle, 0, {failed(1, "node1", milliseconds(50))});
  say("node0", AgentPhase::kIdle, 0);
  come_back("node2");
  EXPECT_THAT(reason(), HasSubstr("restart 1 of 3: node 2 (node2) was lost: it was cut off"));
}

TEST_F(MembershipSilence, ACutOffNodeWhoseWorkerHadFailedBeforeIsBlamedForThat) {
  job_->disconnected("id-node2");
  now_ += milliseconds(4500);
  job_->heard("id-node0", now_);
  job_->heard("id-node1", now_);
  come_back("node2", {failed(2, "node2", milliseconds(3500))});
  say("node0", AgentPhase::kIdle, 0);
  say("node1", AgentPhase::kIdle, 0);
  EXPECT_THAT(reason(), HasSubstr("rank 2 (local rank 0 on node2) exited with code 1"));
}

TEST_F(MembershipSilence, WhereEveryOtherNodeWasCutOffItIsTheOneWithTheService) {
  for (const char* host : {"node1", "node2"}) job_->disconnected(std::string("id-") + host);
  now_ += milliseconds(4500);
  come_back("node1");
  say("node0", AgentPhase::kIdle, 0);
  come_back("node2");
  EXPECT_THAT(reason(), HasSubstr("node 0 (node0) was lost: it runs the rendezvous service"));
  EXPECT_THAT(reason(), Not(HasSubstr("node1")));
}

TEST_F(MembershipSilence, TheSameWhenTheirLeasesRunOut) {
  now_ += seconds(5);
  take(job_->tick(now_));
  say("node0", AgentPhase::kIdle, 0);
  EXPECT_EQ(counted_.lease_losses, 2);
  take(job_->joined(hello("node1"), false, now_));
  take(job_->joined(hello("node2"), false, now_));
  EXPECT_THAT(reason(), HasSubstr("node 0 (node0) was lost: it runs the rendezvous service"));
}

TEST_F(MembershipSilence, AServiceThatDidNotRunTakesNoLeaseAndUsesNoRestart) {
  now_ += seconds(30);
  job_->was_held_up(seconds(30), now_);
  take(job_->tick(now_));
  EXPECT_EQ(counted_.lease_losses, 0);
  job_->disconnected("id-node1");
  job_->disconnected("id-node2");
  now_ += seconds(1);
  come_back("node2");
  say("node0", AgentPhase::kIdle, 0);
  come_back("node1");
  EXPECT_EQ(reason(), "the rendezvous service on node0 did not run for 30.0 s");
  EXPECT_EQ(job_->restarts_used(), 0);
}

TEST_F(MembershipSilence, AWorkerThatFailedBeforeTheOutageTookEffectIsCounted) {
  now_ += seconds(30);
  job_->was_held_up(seconds(30), now_);
  come_back("node2");  // comes before the guilty one
  say("node0", AgentPhase::kIdle, 0);
  come_back("node1", {failed(1, "node1", seconds(29))});
  EXPECT_THAT(reason(), HasSubstr("restart 1 of 3: rank 1 (local rank 0 on node1)"));
}

TEST_F(MembershipSilence, AWorkerThatWasKilledInAnOutageIsCounted) {
  now_ += seconds(30);
  job_->was_held_up(seconds(30), now_);
  WorkerEnd end = killed(1, seconds(20));
  end.host = "node1";
  come_back("node1", {end});
  say("node0", AgentPhase::kIdle, 0, {failed(0, "node0", seconds(19))});
  come_back("node2");
  EXPECT_THAT(reason(), HasSubstr("restart 1 of 3: rank 1 (local rank 0 on node1)"));
}

TEST_F(MembershipSilence, WorkersThatNoticedTheEndOfOthersInAnOutageAreNotBlamed) {
  now_ += seconds(30);
  job_->was_held_up(seconds(30), now_);
  come_back("node1", {failed(1, "node1", seconds(26))});
  say("node0", AgentPhase::kIdle, 0, {failed(0, "node0", seconds(26))});
  come_back("node2");
  EXPECT_THAT(reason(), HasSubstr("did not run"));
  EXPECT_EQ(job_->restarts_used(), 0);
}

TEST_F(MembershipSilence, LongAfterAnOutageANodeThatIsCutOffIsBlamedAgain) {
  now_ += seconds(3);
  job_->was_held_up(seconds(3), now_);
  live(seconds(60));
  job_->disconnected("id-node2");
  now_ += milliseconds(4500);
  job_->heard("id-node1", now_);
  come_back("node2");
  say("node0", AgentPhase::kIdle, 0);
  say("node1", AgentPhase::kIdle, 0);
  EXPECT_THAT(reason(), HasSubstr("node 2 (node2) was lost: it was cut off"));
}

// The service stops repeatedly. Only the first restart in ten minutes is free.
TEST_F(MembershipSilence, AServiceThatDoesNotRunAgainAndAgainUsesRestarts) {
  int generation = 0;
  const auto outage = [&] {
    now_ += seconds(30);
    job_->was_held_up(seconds(30), now_);
    for (const char* host : {"node1", "node2"}) {
      take(job_->joined(hello_again(host, AgentPhase::kIdle, generation), false, now_));
    }
    say("node0", AgentPhase::kIdle, generation);
    const Assignment* next = received<Assignment>("node0");
    if (!next || next->generation != Generation(++generation)) return std::string();
    for (const char* host : {"node0", "node1", "node2"}) {
      say(host, AgentPhase::kRunning, generation);
    }
    return next->reason;
  };
  EXPECT_THAT(outage(), HasSubstr("did not run for 30.0 s"));
  EXPECT_EQ(job_->restarts_used(), 0);
  EXPECT_THAT(outage(), HasSubstr("restart 1 of 3: node 0 (node0) was lost: the rendezvous service "
                                  "on node0 did not run for 30.0 s, again within"));
  live(Membership::kFreeAgain);
  EXPECT_THAT(outage(), Not(HasSubstr("restart")));
  EXPECT_EQ(job_->restarts_used(), 1);
  outage();
  outage();
  EXPECT_EQ(outage(), "") << "no restart is left";
  ASSERT_TRUE(job_->verdict());
  EXPECT_EQ(job_->verdict()->exit_code, to_int(ExitCode::kNodeLost));
}

// ddp-rendezvous does not run on a node of the job, so no node is blamed.
TEST_F(MembershipSilence, ASeparateServiceThatDoesNotRunAgainIsNamedAndNoNode) {
  start({2, 2}, 0);
  join("node1");
  join("node2");
  for (const int generation : {0, 1}) {
    for (const char* host : {"node1", "node2"}) say(host, AgentPhase::kRunning, generation);
    now_ += seconds(30);
    job_->was_held_up(seconds(30), now_);
    for (const char* host : {"node1", "node2"}) {
      take(job_->joined(hello_again(host, AgentPhase::kIdle, generation), false, now_));
    }
  }
  ASSERT_TRUE(job_->verdict());
  EXPECT_EQ(job_->verdict()->exit_code, to_int(ExitCode::kNodeLost));
  const WorkerEnd& first = job_->verdict()->ends.front();
  EXPECT_EQ(first.host, "");
  EXPECT_THAT(describe(first), StartsWith("the rendezvous service did not run for 30.0 s, again "
                                          "within"));
}

TEST_F(MembershipSilence, AHostIsNotHereAndMissingAtOnce) {
  // A new agent of node2 comes before the lease of the old one ends.
  job_->disconnected("id-node2");
  Hello again = hello("node2");
  again.node.agent_id = "id-node2-again";
  take(job_->joined(again, false, now_));
  now_ += seconds(5);
  job_->heard("id-node1", now_);
  job_->heard("id-node2-again", now_);
  take(job_->tick(now_));
  job_->disconnected("id-node1");
  say("node0", AgentPhase::kIdle, 0);
  for (const auto& [id, directive] : received_) {
    if (const Wait* wait = std::get_if<Wait>(&directive)) {
      EXPECT_THAT(wait->reason, Not(HasSubstr("missing: node2"))) << id;
    }
  }
}

}  // namespace
}  // namespace ddprun
