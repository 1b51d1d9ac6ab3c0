// Tests that a job continues when its service is restarted, without kept state and with kept
// state.
#include "tests/rendezvous/membership/core/fixture.h"

namespace ddprun {
namespace {

using testing::HasSubstr;
using testing::Not;

using MembershipTest = testing_support::MembershipFixture;
using std::chrono::milliseconds;
using std::chrono::seconds;

// --- the service was killed and kept no state ---

class RecallTest : public MembershipTest {
 protected:
  // Starts a new service, which knows nothing. The agents still know the job.
  void restart_service(NodeRange nodes, int max_restarts) {
    start(nodes, max_restarts);
    job_->expect_past(now_ + seconds(5));
    received_.clear();
  }
  void come_back(const std::string& host, int node_rank, AgentPhase phase, int generation,
                 std::vector<WorkerEnd> ends = {}) {
    Hello back = hello_again(host, phase, generation, std::move(ends));
    back.assignment = Assignment{.generation = Generation(generation),
                                 .node_rank = NodeRank(node_rank),
                                 .node_count = 2,
                                 .first_rank = Rank(node_rank),
                                 .world_size = 2,
                                 .store = {"10.0.0.1", 4000},
                                 .restart_count = 2,
                                 .reason = "restart 2 of 3: earlier"};
    take(job_->joined(back, false, now_));
  }
  // Brings back a node that was the only one of its generation.
  void come_back_alone(const std::string& host, AgentPhase phase, int generation) {
    Hello back = hello_again(host, phase, generation);
    back.assignment = Assignment{.generation = Generation(generation),
                                 .node_count = 1,
                                 .world_size = 1,
                                 .reason = "earlier"};
    take(job_->joined(back, false, now_));
  }
};

TEST_F(RecallTest, NoMoreBudgetIsUsedThanThereIsWhateverAnAgentSays) {
  restart_service({2, 2}, 1);
  come_back("a", 0, AgentPhase::kRunning, 7);  // this agent says that 2 were used
  EXPECT_EQ(job_->restarts_used(), 1);
}

TEST_F(RecallTest, ARunningGenerationIsTakenOverWhenAllItsNodesHaveCome) {
  restart_service({2, 2}, 3);
  come_back("a", 0, AgentPhase::kRunning, 7);
  EXPECT_FALSE(received<Stop>("a"));
  join("spare");
  EXPECT_TRUE(received<Wait>("spare")) << "nothing is formed while b may still run its workers";
  come_back("b", 1, AgentPhase::kFinished, 7);
  EXPECT_FALSE(received<Stop>("a") || received<Stop>("b"));
  EXPECT_EQ(job_->phase(), JobPhase::kRunning);
  EXPECT_EQ(job_->generation(), Generation(7));
  say("a", AgentPhase::kFinished, 7);
  ASSERT_TRUE(received<End>("a"));
  EXPECT_TRUE(received<End>("a")->verdict.success);
  EXPECT_EQ(received<End>("a")->verdict.restarts_used, 2);
}

// A spare replaced node a. The spare may still run the generation after that of a.
TEST_F(RecallTest, ANodeThatWasReplacedDoesNotBeginAgainWhatAnotherMayStillRun) {
  restart_service({1, 1}, 3);
  Hello replaced = hello_again("a", AgentPhase::kIdle, 8);  // told of generation 8 while it waited
  replaced.assignment = Assignment{.generation = Generation(7), .node_count = 1, .world_size = 1};
  take(job_->joined(replaced, false, now_));
  EXPECT_TRUE(received<Wait>("a"));
  come_back_alone("b", AgentPhase::kRunning, 8);
  EXPECT_FALSE(received<Stop>("b"));
  EXPECT_EQ(job_->phase(), JobPhase::kRunning);
  EXPECT_EQ(job_->generation(), Generation(8));
  ASSERT_TRUE(received<Wait>("a"));
  EXPECT_EQ(received<Wait>("a")->generation, Generation(8));
}

TEST_F(RecallTest, TheBudgetThatWasUsedStaysUsed) {
  restart_service({2, 2}, 3);
  come_back("a", 0, AgentPhase::kRunning, 7);
  come_back("b", 1, AgentPhase::kRunning, 7);
  for (const int generation : {7, 8}) {
    say("a", AgentPhase::kIdle, generation, {killed(0)});
    say("b", AgentPhase::kIdle, generation);
    if (generation == 8) break;
    ASSERT_TRUE(received<Assignment>("a"));
    EXPECT_EQ(received<Assignment>("a")->generation, Generation(8));
    EXPECT_EQ(received<Assignment>("a")->restart_count, 3);
  }
  ASSERT_TRUE(received<End>("a"));
  EXPECT_EQ(received<End>("a")->verdict.restarts_used, 3);
}

TEST_F(RecallTest, AFailureDuringTheOutageUsesBudget) {
  restart_service({2, 2}, 3);
  come_back("a", 0, AgentPhase::kRunning, 7);
  come_back("b", 1, AgentPhase::kIdle, 7, {killed(1)});
  ASSERT_TRUE(received<Stop>("a"));
  say("a", AgentPhase::kIdle, 7);
  ASSERT_TRUE(received<Assignment>("a"));
  EXPECT_EQ(received<Assignment>("a")->generation, Generation(8));
  EXPECT_EQ(received<Assignment>("a")->restart_count, 3);
}

// The agent of b was ending its other workers when it came back. It reported the failure after
// that.
TEST_F(RecallTest, AFailureDuringTheOutageThatIsToldLateUsesBudget) {
  restart_service({2, 2}, 3);
  come_back("a", 0, AgentPhase::kIdle, 7);
  come_back("b", 1, AgentPhase::kStopping, 7);
  say("b", AgentPhase::kIdle, 7, {killed(1)});
  ASSERT_TRUE(received<Assignment>("a"));
  EXPECT_EQ(received<Assignment>("a")->generation, Generation(8));
  EXPECT_EQ(received<Assignment>("a")->restart_count, 3);
}

// An agent reports a hang once. This agent reported it while there was no service.
TEST_F(RecallTest, AHangThatBeganDuringTheOutageIsEnded) {
  restart_service({2, 2}, 3);
  Hello back = hello_again("a", AgentPhase::kRunning, 7);
  back.assignment = Assignment{
      .generation = Generation(7), .node_rank = NodeRank(0), .node_count = 2, .world_size = 2};
  back.status.snapshots = {
      {.rank = Rank(0), .flight = FlightState::kWaiting, .collective = 57, .call = "barrier"}};
  take(job_->joined(back, false, now_));
  EXPECT_FALSE(received<Stop>("a"));
  come_back("b", 1, AgentPhase::kRunning, 7);
  for (const char* host : {"a", "b"}) {
    ASSERT_TRUE(received<Stop>(host)) << host;
    EXPECT_TRUE(received<Stop>(host)->look) << host;
  }
}

TEST_F(RecallTest, AnOutageThatTheAgentsDidNotSitOutUsesNone) {
  restart_service({2, 2}, 3);
  WorkerEnd victim = killed(0);
  victim.after_stop = true;
  come_back("a", 0, AgentPhase::kIdle, 7, {victim});
  EXPECT_FALSE(received<Assignment>("a"));
  come_back("b", 1, AgentPhase::kIdle, 7);
  ASSERT_TRUE(received<Assignment>("b"));
  EXPECT_EQ(received<Assignment>("b")->generation, Generation(8));
  EXPECT_EQ(received<Assignment>("b")->restart_count, 2);
}

// The agent of a lost patience first. Then rank 1 on b lost its peer. It exited before the agent
// of b lost patience.
TEST_F(RecallTest, AWorkerThatNoticedWhatTheOutageDidToOthersIsNotBlamed) {
  WorkerEnd stopped = killed(0, seconds(3));
  stopped.after_stop = true;
  WorkerEnd victim{.kind = EndKind::kExited, .code = 1, .rank = Rank(1), .age = seconds(2)};
  for (const bool victim_comes_first : {false, true}) {
    SCOPED_TRACE(victim_comes_first);
    restart_service({2, 2}, 2);  // 2 are used
    if (victim_comes_first) come_back("b", 1, AgentPhase::kIdle, 7, {victim});
    come_back("a", 0, AgentPhase::kIdle, 7, {stopped});
    if (!victim_comes_first) come_back("b", 1, AgentPhase::kIdle, 7, {victim});
    ASSERT_TRUE(received<Assignment>("b"));
    EXPECT_EQ(received<Assignment>("b")->restart_count, 2);
    EXPECT_EQ(received<Assignment>("b")->reason, "the rendezvous service was restarted");
  }
}

// The worker exited before any agent had ended workers, or was killed by a signal that no agent
// sent.
TEST_F(RecallTest, AWorkersOwnFailureDuringTheOutageUsesBudget) {
  WorkerEnd stopped = killed(0, seconds(3));
  stopped.after_stop = true;
  const WorkerEnd early{.kind = EndKind::kExited, .code = 1, .rank = Rank(1), .age = seconds(4)};
  for (const WorkerEnd& own : {early, killed(1, seconds(2))}) {
    restart_service({2, 2}, 3);
    come_back("a", 0, AgentPhase::kIdle, 7, {stopped});
    come_back("b", 1, AgentPhase::kIdle, 7, {own});
    ASSERT_TRUE(received<Assignment>("b"));
    EXPECT_EQ(received<Assignment>("b")->restart_count, 3);
    EXPECT_THAT(received<Assignment>("b")->reason, HasSubstr("rank 1"));
  }
}

// An agent of an older generation came first. It had no workers.
TEST_F(RecallTest, AGenerationThatWasTakenOverIsNotJudgedAsRecalled) {
  JobSpec spec;
  spec.id = "job";
  spec.nodes = {1, 3};
  spec.max_restarts = 3;
  spec.on_join = OnJoin::kNow;
  start(spec);
  job_->expect_past(now_ + seconds(5));
  come_back("c", 1, AgentPhase::kIdle, 6);
  job_->disconnected("id-c");
  come_back("a", 0, AgentPhase::kRunning, 7);
  come_back("b", 1, AgentPhase::kRunning, 7);
  ASSERT_EQ(job_->phase(), JobPhase::kRunning);
  join("d");
  ASSERT_TRUE(received<Stop>("a"));
  EXPECT_EQ(received<Stop>("a")->reason, "a node joined");
  // The worker exited before its agent received the stop.
  say("a", AgentPhase::kIdle, 7, {{.kind = EndKind::kExited, .code = 1}});
  say("b", AgentPhase::kIdle, 7);
  ASSERT_TRUE(received<Assignment>("d"));
  EXPECT_EQ(received<Assignment>("d")->restart_count, 2);
}

TEST_F(RecallTest, NothingIsFormedBeforeTheLeaseOfAMissingNodeIsOver) {
  restart_service({1, 2}, 3);
  beating_ = {"a"};
  come_back("a", 0, AgentPhase::kIdle, 7);
  pass(milliseconds(4900));
  EXPECT_FALSE(received<Assignment>("a")) << "b may still run workers of generation 7";
  pass(milliseconds(200));
  ASSERT_TRUE(received<Assignment>("a"));
  EXPECT_EQ(received<Assignment>("a")->world_size, 1);
}

TEST_F(RecallTest, ANodeThatDoesNotComeBackToARunningGenerationIsLost) {
  restart_service({1, 2}, 3);
  beating_ = {"a"};
  come_back("a", 0, AgentPhase::kRunning, 7);
  pass(milliseconds(4900));
  EXPECT_FALSE(received<Stop>("a"));
  pass(milliseconds(200));
  ASSERT_TRUE(received<Stop>("a"));
  say("a", AgentPhase::kIdle, 7);
  ASSERT_TRUE(received<Assignment>("a"));
  EXPECT_EQ(received<Assignment>("a")->restart_count, 3);
  EXPECT_THAT(received<Assignment>("a")->reason, HasSubstr("node 1"));
}

TEST_F(RecallTest, WhoRunsAnOlderGenerationThanOthersIsStopped) {
  restart_service({2, 2}, 3);
  come_back("c", 0, AgentPhase::kRunning, 6);
  come_back("a", 0, AgentPhase::kRunning, 7);
  come_back("b", 1, AgentPhase::kRunning, 7);
  EXPECT_EQ(job_->phase(), JobPhase::kRunning);
  say("c", AgentPhase::kRunning, 6);
  EXPECT_TRUE(received<Stop>("c"));
  EXPECT_FALSE(received<Stop>("a") || received<Stop>("b"));
}

TEST_F(RecallTest, AJobThatIsToldToEndWhileItIsRecalledEnds) {
  restart_service({2, 2}, 3);
  come_back("a", 0, AgentPhase::kRunning, 7);
  take(job_->left("id-a", Leave{SIGTERM, ""}, now_));
  come_back("b", 1, AgentPhase::kRunning, 7);
  ASSERT_TRUE(received<End>("b"));
  EXPECT_EQ(received<End>("b")->verdict.exit_code, 143);
}

// --- the service was killed and kept its state ---

class RestoredTest : public MembershipTest {
 protected:
  // Kills the service. Another one continues with the kept state.
  void restart_service(Duration earlier_run_lasts = {}) {
    const JobState kept = job_->state(now_);
    now_ += seconds(2);
    job_.emplace(kept, seconds(5), now_, earlier_run_lasts);
    received_.clear();
    log_.clear();
  }
  void come_back(const std::string& host, AgentPhase phase, int generation,
                 std::vector<WorkerEnd> ends = {}) {
    take(job_->joined(hello_again(host, phase, generation, std::move(ends)), false, now_));
  }
  // Runs generation 1 on 2 nodes. One restart of `max_restarts` is used.
  void run_second_generation(NodeRange nodes, int max_restarts) {
    start(nodes, max_restarts);
    join("a");
    join("b");
    say("a", AgentPhase::kIdle, 0, {killed(0)});
    say("b", AgentPhase::kIdle, 0);
    say("a", AgentPhase::kRunning, 1);
    say("b", AgentPhase::kRunning, 1);
    ASSERT_EQ(job_->generation(), Generation(1));
  }
};

// The first node that reports a hang knows only its own workers. The other nodes report later.
TEST_F(RestoredTest, AHangIsJudgedByWhatAllNodesHaveSeen) {
  const WorkerSnapshot waits{
      .rank = Rank(0), .flight = FlightState::kWaiting, .collective = 57, .call = "barrier"};
  const WorkerSnapshot absent{.rank = Rank(1), .flight = FlightState::kOutside, .collective = 56};
  const auto with = [this](const std::string& host, AgentPhase phase, const WorkerSnapshot& seen) {
    Hello hello = hello_again(host, phase, 1);
    hello.status.snapshots = {seen};
    return hello;
  };
  run_second_generation({2, 2}, 1);
  take(job_->status("id-a", with("a", AgentPhase::kRunning, waits).status, now_));
  restart_service();
  take(job_->joined(with("b", AgentPhase::kRunning, absent), false, now_));
  ASSERT_TRUE(received<Stop>("b"));
  EXPECT_TRUE(received<Stop>("b")->look);
  take(job_->joined(with("a", AgentPhase::kIdle, waits), false, now_));
  take(job_->status("id-b", with("b", AgentPhase::kIdle, absent).status, now_));
  ASSERT_TRUE(received<End>("a"));
  EXPECT_EQ(received<End>("a")->verdict.ends.front().rank, Rank(1));
}

TEST_F(RestoredTest, GoesOnWhereItWasWithItsGenerationAndItsBudget) {
  run_second_generation({2, 2}, 3);
  restart_service();
  come_back("a", AgentPhase::kRunning, 1);
  join("newcomer");
  EXPECT_TRUE(received<Wait>("newcomer"));
  EXPECT_FALSE(received<Stop>("a"));
  come_back("b", AgentPhase::kRunning, 1);
  EXPECT_FALSE(received<Stop>("b"));
  EXPECT_EQ(job_->phase(), JobPhase::kRunning);
  EXPECT_EQ(job_->generation(), Generation(1));
  EXPECT_THAT(log_, Not(HasSubstr("lost")));
  say("b", AgentPhase::kIdle, 1, {killed(1)});
  say("a", AgentPhase::kIdle, 1);
  ASSERT_TRUE(received<Assignment>("a"));
  EXPECT_EQ(received<Assignment>("a")->restart_count, 2);
}

TEST_F(RestoredTest, KnowsSinceWhenTheJobAndItsGenerationExist) {
  start({2, 2}, 3);
  const TimePoint began = now_;
  now_ += seconds(2);
  join("a");
  join("b");
  const TimePoint formed = now_;
  now_ += seconds(7);
  restart_service();
  restart_service();
  EXPECT_EQ(job_->known_since(), began);
  EXPECT_EQ(job_->formed_at(), formed);
}

TEST_F(RestoredTest, AGenerationOfTheEarlierRunThatLivedBrieflyIsAQuickFailure) {
  run_second_generation({2, 2}, 3);
  restart_service();
  come_back("a", AgentPhase::kRunning, 1);
  come_back("b", AgentPhase::kRunning, 1);
  fail({"a", "b"}, "a", seconds(1));
  ASSERT_TRUE(received<Assignment>("a"));
  received_.clear();
  fail({"a", "b"}, "a", seconds(1));
  EXPECT_FALSE(received<Assignment>("a")) << "a pause follows the second one in a row";
}

// The earlier run may still answer a node, so its workers may live for longer than a lease.
TEST_F(RestoredTest, ANodeIsNotLostWhileTheEarlierRunMayAnswerIt) {
  run_second_generation({2, 2}, 3);
  restart_service(seconds(2));
  come_back("a", AgentPhase::kRunning, 1);
  beating_ = {"a"};
  pass(milliseconds(6900));
  EXPECT_FALSE(received<Stop>("a"));
  pass(milliseconds(200));
  EXPECT_TRUE(received<Stop>("a"));
}

// The service was killed when the assignment was durable and only one node had received it. The
// other node gets it now.
TEST_F(RestoredTest, WhoWasNotToldOfTheGenerationYetIsToldNow) {
  start({2, 2});
  join("a");
  join("b");
  restart_service();
  come_back("a", AgentPhase::kRunning, 0);
  come_back("b", AgentPhase::kIdle, -1);
  ASSERT_TRUE(received<Assignment>("b"));
  EXPECT_EQ(received<Assignment>("b")->generation, Generation(0));
  EXPECT_FALSE(received<Stop>("a"));
  EXPECT_EQ(job_->phase(), JobPhase::kRunning);
}

// The node that failed first is gone. Its report is still known.
TEST_F(RestoredTest, AFailureThatWasKnownUsesBudgetAndKeepsItsStory) {
  run_second_generation({1, 2}, 3);
  say("a", AgentPhase::kStopping, 1, {killed(0)});
  ASSERT_TRUE(received<Stop>("b"));
  restart_service();
  beating_ = {"b"};
  WorkerEnd victim = killed(1, seconds(60));
  come_back("b", AgentPhase::kRunning, 1, {victim});
  ASSERT_TRUE(received<Stop>("b"));
  say("b", AgentPhase::kIdle, 1);
  EXPECT_FALSE(received<Assignment>("b")) << "a may still have workers";
  pass(seconds(6));
  ASSERT_TRUE(received<Assignment>("b"));
  EXPECT_EQ(received<Assignment>("b")->generation, Generation(2));
  EXPECT_EQ(received<Assignment>("b")->restart_count, 2);
  EXPECT_THAT(received<Assignment>("b")->reason, HasSubstr("rank 0"));
}

TEST_F(RestoredTest, ABudgetThatWasUsedUpStaysUsedUp) {
  run_second_generation({2, 2}, 1);
  say("a", AgentPhase::kStopping, 1, {killed(0)});
  restart_service();
  come_back("a", AgentPhase::kIdle, 1, {killed(0)});
  come_back("b", AgentPhase::kIdle, 1);
  ASSERT_TRUE(received<End>("a"));
  EXPECT_EQ(received<End>("a")->verdict.exit_code, 128 + SIGKILL);
  EXPECT_EQ(received<End>("a")->verdict.restarts_used, 1);
}

TEST_F(RestoredTest, ARestartThatWaitsForANodeIsCountedOnce) {
  run_second_generation({2, 2}, 2);
  beating_ = {"a"};
  pass(milliseconds(5100));  // b is lost
  say("a", AgentPhase::kIdle, 1);
  EXPECT_TRUE(received<Wait>("a")) << "the second restart has been counted, and needs another node";
  restart_service();
  come_back("a", AgentPhase::kIdle, 1);
  pass(milliseconds(5100));
  EXPECT_FALSE(received<End>("a"));
  join("c");
  ASSERT_TRUE(received<Assignment>("a"));
  EXPECT_EQ(received<Assignment>("a")->restart_count, 2);
  EXPECT_THAT(received<Assignment>("a")->reason, HasSubstr("node 1 (b)"));
}

TEST_F(RestoredTest, AnOutageThatTheAgentsDidNotSitOutUsesNoBudget) {
  run_second_generation({2, 2}, 3);
  restart_service();
  WorkerEnd victim = killed(0);
  victim.after_stop = true;
  come_back("a", AgentPhase::kIdle, 1, {victim});
  EXPECT_FALSE(received<Assignment>("a"));
  come_back("b", AgentPhase::kIdle, 1);
  ASSERT_TRUE(received<Assignment>("b"));
  EXPECT_EQ(received<Assignment>("b")->generation, Generation(2));
  EXPECT_EQ(received<Assignment>("b")->restart_count, 1);
  EXPECT_EQ(received<Assignment>("b")->node_rank, NodeRank(1)) << "every node keeps its place";
}

TEST_F(RestoredTest, ANodeThatDoesNotComeBackIsLostAndNamed) {
  run_second_generation({1, 2}, 3);
  restart_service();
  beating_ = {"a"};
  come_back("a", AgentPhase::kRunning, 1);
  pass(milliseconds(4900));
  EXPECT_FALSE(received<Stop>("a"));
  pass(milliseconds(200));
  ASSERT_TRUE(received<Stop>("a"));
  EXPECT_THAT(received<Stop>("a")->reason, HasSubstr("node 1 (b)"));
  say("a", AgentPhase::kIdle, 1);
  ASSERT_TRUE(received<Assignment>("a"));
  EXPECT_EQ(received<Assignment>("a")->restart_count, 2);
}

// This happens when the power fails in the whole room. Other agents continue the job.
TEST_F(RestoredTest, AGenerationOfWhichNobodyComesBackUsesNoBudget) {
  run_second_generation({2, 2}, 3);
  restart_service();
  beating_ = {"c", "d"};
  join("c");
  join("d");
  EXPECT_FALSE(received<Assignment>("c"));
  pass(milliseconds(5100));
  ASSERT_TRUE(received<Assignment>("c"));
  EXPECT_EQ(received<Assignment>("c")->generation, Generation(2));
  EXPECT_EQ(received<Assignment>("c")->restart_count, 1);
  EXPECT_EQ(received<Assignment>("c")->reason, "the rendezvous service was restarted");
}

TEST_F(RestoredTest, AJobThatWasToldToEndEndsWhenNothingOfItIsLeft) {
  run_second_generation({2, 2}, 3);
  AgentStatus leaving{.phase = AgentPhase::kStopping, .generation = Generation(1)};
  leaving.leaving = SIGTERM;
  take(job_->status("id-a", leaving, now_));
  restart_service();
  come_back("b", AgentPhase::kRunning, 1);
  EXPECT_TRUE(received<Stop>("b"));
  say("b", AgentPhase::kIdle, 1);
  EXPECT_FALSE(received<End>("b")) << "a may still have workers";
  come_back("a", AgentPhase::kIdle, 1);
  ASSERT_TRUE(received<End>("b"));
  EXPECT_EQ(received<End>("b")->verdict.exit_code, 128 + SIGTERM);
}

TEST_F(RestoredTest, AVerdictIsToldToWhoComesLate) {
  run_second_generation({2, 2}, 3);
  say("a", AgentPhase::kFinished, 1);
  say("b", AgentPhase::kFinished, 1);
  restart_service();
  EXPECT_EQ(job_->deadline(), std::nullopt);
  come_back("b", AgentPhase::kFinished, 1);
  ASSERT_TRUE(received<End>("b"));
  EXPECT_TRUE(received<End>("b")->verdict.success);
}

// The service does not know which other nodes were admitted before the first generation.
TEST_F(RestoredTest, AJobThatNeverRanWaitsForThoseOnTheirWayBack) {
  start({1, 3});
  join("a");
  restart_service();
  beating_ = {"a", "c"};
  come_back("a", AgentPhase::kIdle, -1);
  come_back("c", AgentPhase::kIdle, -1);
  EXPECT_FALSE(received<Assignment>("a"));
  pass(milliseconds(4900));
  EXPECT_FALSE(received<Assignment>("a"));
  pass(seconds(31));  // and a last call
  ASSERT_TRUE(received<Assignment>("a"));
  EXPECT_EQ(received<Assignment>("a")->generation, Generation(0));
}

TEST_F(RestoredTest, AJobThatNeverRanBeginsWhenItIsFull) {
  start({2, 2});
  join("a");
  restart_service();
  join("b");
  EXPECT_FALSE(received<Assignment>("b"));
  come_back("a", AgentPhase::kIdle, -1);
  EXPECT_TRUE(received<Assignment>("a"));
}

TEST_F(RestoredTest, KilledAgainWhileItIsRecalledNothingIsForgotten) {
  run_second_generation({2, 2}, 3);
  restart_service();
  come_back("a", AgentPhase::kRunning, 1);
  restart_service();
  come_back("b", AgentPhase::kRunning, 1);
  come_back("a", AgentPhase::kRunning, 1);
  EXPECT_EQ(job_->phase(), JobPhase::kRunning);
  EXPECT_EQ(job_->generation(), Generation(1));
  EXPECT_FALSE(received<Stop>("a") || received<Stop>("b"));
}

TEST_F(RestoredTest, KilledAgainBeforeAFailureIsJudgedItCountsTheFailureOnce) {
  run_second_generation({2, 2}, 3);
  for (int run = 0; run < 2; ++run) {
    restart_service();
    come_back("a", AgentPhase::kIdle, 1, {killed(0)});
    EXPECT_FALSE(received<Assignment>("a")) << "b may have failed first";
  }
  come_back("b", AgentPhase::kIdle, 1);
  ASSERT_TRUE(received<Assignment>("a"));
  EXPECT_EQ(received<Assignment>("a")->restart_count, 2);
  restart_service();
  come_back("a", AgentPhase::kIdle, 1, {killed(0)});
  come_back("b", AgentPhase::kIdle, 1);
  ASSERT_TRUE(received<Assignment>("b"));
  EXPECT_EQ(received<Assignment>("b")->restart_count, 2) << "it was counted already";
}

}  // namespace
}  // namespace ddprun
