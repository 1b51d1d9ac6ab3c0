#include "rendezvous/core/membership.h"

#include <gtest/gtest.h>

#include <csignal>

namespace ddprun {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// One job and its agents, driven by hand. What was told to whom last is in told_.
class MembershipTest : public testing::Test {
 protected:
  void start(NodeRange nodes, int max_restarts = 0) {
    JobSpec spec;
    spec.id = "job";
    spec.nodes = nodes;
    spec.max_restarts = max_restarts;
    spec.join_timeout = seconds(600);
    spec.last_call = seconds(30);
    job_.emplace(spec, MembershipOptions{.lease = seconds(5)}, now_);
  }

  Hello hello(const std::string& host, int slots = 1) {
    Hello hello;
    hello.job = job_->spec();
    hello.node = {.agent_id = "id-" + host,
                  .host = host,
                  .slots = slots,
                  .node_rank = {},
                  .address = "10.0.0.1"};
    hello.status.store_port = 4000;
    return hello;
  }
  void join(const std::string& host, int slots = 1) {
    take(job_->joined(hello(host, slots), false, now_));
  }

  void say(const std::string& host, AgentPhase phase, int generation,
           std::vector<WorkerEnd> ends = {}) {
    AgentStatus status{.phase = phase,
                       .generation = Generation(generation),
                       .ends = std::move(ends),
                       .store_port = 4001};
    take(job_->status("id-" + host, status, now_));
  }

  void pass(Duration time) {
    // Everybody who is connected sends heartbeats; only silent ones lose their lease.
    const TimePoint end = now_ + time;
    while (now_ < end) {
      now_ += std::min<Duration>(seconds(1), end - now_);
      for (const std::string& host : beating_) job_->heard("id-" + host, now_);
      if (job_->deadline() && *job_->deadline() <= now_) take(job_->tick(now_));
    }
  }

  void take(MembershipOutput out) {
    for (Tell& tell : out.tells) told_[tell.agent_id] = std::move(tell.directive);
    for (std::string& line : out.log) log_ += line + "\n";
    counted_.generations_formed += out.generations_formed;
    counted_.restarts += out.restarts;
    counted_.lease_losses += out.lease_losses;
  }

  template <class T>
  const T* told(const std::string& host) {
    const auto found = told_.find("id-" + host);
    return found == told_.end() ? nullptr : std::get_if<T>(&found->second);
  }

  static WorkerEnd killed(int rank, Duration age = Duration(0)) {
    WorkerEnd end{.kind = EndKind::kSignaled, .code = SIGKILL};
    end.rank = Rank(rank);
    end.host = "somewhere";
    end.age = age;
    return end;
  }

  TimePoint now_ = TimePoint(seconds(1000));
  std::optional<Membership> job_;
  std::vector<std::string> beating_;
  std::map<std::string, Directive> told_;
  std::string log_;
  MembershipOutput counted_;  // the sums of what happened
};

TEST_F(MembershipTest, FormsTheFirstGenerationWhenTheLastNodeArrives) {
  start({2, 2});
  join("node1", 4);
  ASSERT_TRUE(told<Wait>("node1"));
  EXPECT_EQ(told<Wait>("node1")->reason, "1 of 2 nodes here: node1");
  join("node0", 2);
  const Assignment* first = told<Assignment>("node0");
  const Assignment* second = told<Assignment>("node1");
  ASSERT_TRUE(first && second);
  EXPECT_EQ(first->node_rank, NodeRank(0));
  EXPECT_EQ(first->first_rank, Rank(0));
  EXPECT_EQ(second->node_rank, NodeRank(1));
  EXPECT_EQ(second->first_rank, Rank(2));
  EXPECT_EQ(first->world_size, 6);
  EXPECT_EQ(first->store_port, 4000);
  EXPECT_EQ(first->restart_count, 0);
}

TEST_F(MembershipTest, RefusesWhoDoesNotAgreeOnTheJob) {
  start({2, 2}, 3);
  Hello other = hello("node1");
  other.job.nodes = {3, 3};
  ASSERT_TRUE(job_->refusal(other));
  EXPECT_NE(job_->refusal(other)->find("--nnodes=2"), std::string::npos);
  other = hello("node1");
  other.job.max_restarts = 1;
  EXPECT_TRUE(job_->refusal(other));
  EXPECT_FALSE(job_->refusal(hello("node1")));
}

TEST_F(MembershipTest, RefusesANodeRankThatIsTakenOrOutOfRange) {
  start({2, 2});
  Hello first = hello("node0");
  first.node.node_rank = 0;
  take(job_->joined(first, false, now_));
  Hello second = hello("node1");
  second.node.node_rank = 0;
  ASSERT_TRUE(job_->refusal(second));
  EXPECT_NE(job_->refusal(second)->find("taken by node0"), std::string::npos);
  second.node.node_rank = 2;
  EXPECT_TRUE(job_->refusal(second));
  second.node.node_rank = 1;
  EXPECT_FALSE(job_->refusal(second));
}

TEST_F(MembershipTest, EndsWellWhenEveryNodeHasFinished) {
  start({2, 2});
  join("a");
  join("b");
  say("a", AgentPhase::kRunning, 0);
  say("b", AgentPhase::kRunning, 0);
  say("a", AgentPhase::kFinished, 0);
  EXPECT_FALSE(told<End>("a"));
  say("b", AgentPhase::kFinished, 0);
  ASSERT_TRUE(told<End>("a") && told<End>("b"));
  EXPECT_TRUE(told<End>("a")->verdict.success);
  EXPECT_EQ(told<End>("b")->verdict.exit_code, 0);
}

TEST_F(MembershipTest, AFailureStopsEveryoneAndTheNextGenerationWaitsForAll) {
  start({2, 2}, 1);
  join("a");
  join("b");
  say("a", AgentPhase::kRunning, 0);
  say("b", AgentPhase::kRunning, 0);
  say("b", AgentPhase::kStopping, 0, {killed(1)});
  ASSERT_TRUE(told<Stop>("a"));
  EXPECT_EQ(told<Stop>("a")->generation, Generation(0));
  say("b", AgentPhase::kIdle, 0, {killed(1)});
  EXPECT_EQ(job_->generation(), Generation(0)) << "node a has not confirmed";
  say("a", AgentPhase::kStopping, 0);
  say("a", AgentPhase::kIdle, 0);
  ASSERT_TRUE(told<Assignment>("a") && told<Assignment>("b"));
  EXPECT_EQ(told<Assignment>("a")->generation, Generation(1));
  EXPECT_EQ(told<Assignment>("b")->restart_count, 1);
  EXPECT_EQ(told<Assignment>("b")->store_port, 4001) << "a generation has a store of its own";
}

TEST_F(MembershipTest, TheBudgetIsTheJobsAndItsEndIsTheFirstFailuresCode) {
  start({2, 2}, 1);
  join("a");
  join("b");
  for (int generation = 0; generation < 2; ++generation) {
    say("a", AgentPhase::kRunning, generation);
    say("b", AgentPhase::kRunning, generation);
    // Another node fails each time: the budget is counted once for the job.
    const std::string guilty = generation == 0 ? "a" : "b";
    const std::string other = generation == 0 ? "b" : "a";
    say(guilty, AgentPhase::kIdle, generation, {killed(generation)});
    say(other, AgentPhase::kIdle, generation);
  }
  ASSERT_TRUE(told<End>("a") && told<End>("b"));
  const Verdict& verdict = told<End>("a")->verdict;
  EXPECT_FALSE(verdict.success);
  EXPECT_EQ(verdict.exit_code, 137);
  EXPECT_EQ(verdict.restarts_used, 1);
  ASSERT_FALSE(verdict.ends.empty());
  EXPECT_EQ(verdict.ends.front().rank, Rank(1));
}

TEST_F(MembershipTest, TheEarliestEndIsTheFirstFailureWhateverArrivesFirst) {
  start({2, 2});
  join("a");
  join("b");
  say("a", AgentPhase::kRunning, 0);
  say("b", AgentPhase::kRunning, 0);
  WorkerEnd echo = killed(0);
  echo.kind = EndKind::kExited;
  echo.code = 1;
  say("a", AgentPhase::kIdle, 0, {echo});
  now_ += milliseconds(50);
  say("b", AgentPhase::kIdle, 0, {killed(1, milliseconds(80))});  // 30 ms before the echo
  ASSERT_TRUE(told<End>("a"));
  EXPECT_EQ(told<End>("a")->verdict.ends.front().rank, Rank(1));
  EXPECT_EQ(told<End>("a")->verdict.exit_code, 137);
}

TEST_F(MembershipTest, TheVerdictOnAThousandEndsTellsOfTheLikeliestAndCountsTheRest) {
  start({10, 10});
  for (int node = 0; node < 10; ++node) join("n" + std::to_string(node), 100);
  for (int node = 0; node < 10; ++node) {
    std::vector<WorkerEnd> ends;
    for (int i = 0; i < 100; ++i) {
      ends.push_back(killed(node * 100 + i, milliseconds(node == 7 && i == 42 ? 50 : 10)));
    }
    say("n" + std::to_string(node), AgentPhase::kIdle, 0, std::move(ends));
  }
  ASSERT_TRUE(told<End>("n0"));
  const Verdict& verdict = told<End>("n0")->verdict;
  EXPECT_EQ(verdict.ends.size(), kEndsTold);
  EXPECT_EQ(verdict.ends.front().rank, Rank(742)) << "it came after more ends than are kept";
  EXPECT_EQ(verdict.more_ends, 1000 - static_cast<int>(kEndsTold));
}

TEST_F(MembershipTest, AWorkerThatCannotBeStartedIsNotTriedAgain) {
  start({1, 1}, 5);
  join("a");
  WorkerEnd end{.kind = EndKind::kNotStarted, .code = 8, .message = "exec: Exec format error"};
  say("a", AgentPhase::kIdle, 0, {end});
  ASSERT_TRUE(told<End>("a"));
  EXPECT_EQ(told<End>("a")->verdict.exit_code, 64);
  EXPECT_EQ(told<End>("a")->verdict.restarts_used, 0);
}

TEST_F(MembershipTest, ASilentNodeIsLostAfterItsLeaseAndBlamedBeforeItsVictims) {
  start({1, 2}, 1);
  join("a");
  join("b");
  say("a", AgentPhase::kRunning, 0);
  say("b", AgentPhase::kRunning, 0);
  beating_ = {"a"};
  pass(milliseconds(4900));
  EXPECT_EQ(job_->phase(), Membership::Phase::kRunning);
  WorkerEnd echo = killed(0);
  say("a", AgentPhase::kStopping, 0, {echo});
  say("a", AgentPhase::kIdle, 0, {echo});
  EXPECT_EQ(job_->generation(), Generation(0)) << "node b may still run workers";
  pass(milliseconds(200));
  ASSERT_TRUE(told<Assignment>("a"));
  EXPECT_EQ(told<Assignment>("a")->generation, Generation(1));
  EXPECT_EQ(told<Assignment>("a")->world_size, 1);
  EXPECT_NE(told<Assignment>("a")->reason.find("node 1 (b) was lost"), std::string::npos);
}

TEST_F(MembershipTest, AJobOfFixedSizeWaitsForAReplacementOfALostNode) {
  start({2, 2}, 1);
  join("a");
  join("b");
  say("a", AgentPhase::kRunning, 0);
  say("b", AgentPhase::kRunning, 0);
  beating_ = {"a"};
  pass(seconds(6));
  ASSERT_TRUE(told<Stop>("a"));
  say("a", AgentPhase::kIdle, 0);
  EXPECT_EQ(job_->phase(), Membership::Phase::kForming);
  ASSERT_TRUE(told<Wait>("a")) << "it hears what is missing";
  EXPECT_EQ(told<Wait>("a")->reason, "1 of 2 nodes here: a");
  join("c");
  ASSERT_TRUE(told<Assignment>("c"));
  EXPECT_EQ(told<Assignment>("c")->node_rank, NodeRank(1)) << "it takes the hole";
  EXPECT_EQ(told<Assignment>("a")->node_rank, NodeRank(0)) << "others keep their place";
}

TEST_F(MembershipTest, ANodeThatComesBackAfterItsLeaseIsFenced) {
  start({1, 2}, 1);
  join("a");
  join("b");
  say("a", AgentPhase::kRunning, 0);
  say("b", AgentPhase::kRunning, 0);
  beating_ = {"a"};
  pass(seconds(6));
  say("a", AgentPhase::kIdle, 0);
  say("a", AgentPhase::kRunning, 1);
  Hello late = hello("b");
  late.status.phase = AgentPhase::kRunning;
  late.status.generation = Generation(0);
  take(job_->joined(late, false, now_));
  ASSERT_TRUE(told<Stop>("b")) << "it must end the workers of the old generation";
  EXPECT_EQ(told<Stop>("b")->generation, Generation(0));
}

TEST_F(MembershipTest, AnOutageWithinTheLeaseChangesNothing) {
  start({2, 2});
  join("a");
  join("b");
  say("a", AgentPhase::kRunning, 0);
  say("b", AgentPhase::kRunning, 0);
  job_->disconnected("id-b");
  beating_ = {"a"};
  pass(seconds(3));
  Hello back = hello("b");
  back.status.phase = AgentPhase::kRunning;
  back.status.generation = Generation(0);
  told_.clear();
  take(job_->joined(back, false, now_));
  EXPECT_EQ(job_->phase(), Membership::Phase::kRunning);
  EXPECT_TRUE(told<Assignment>("b")) << "the same assignment again, which it knows";
  EXPECT_FALSE(told<Stop>("a"));
}

TEST_F(MembershipTest, AnAssignmentThatWasLostWithItsConnectionIsToldAgain) {
  start({2, 2});
  join("a");
  join("b");
  say("a", AgentPhase::kRunning, 0);
  job_->disconnected("id-b");
  told_.clear();
  join("b");
  ASSERT_TRUE(told<Assignment>("b"));
  EXPECT_EQ(told<Assignment>("b")->generation, Generation(0));
}

TEST_F(MembershipTest, AFailureBeforeEveryoneHasStartedWaitsForThoseOnTheWay) {
  start({2, 2}, 1);
  join("a");
  join("b");
  say("a", AgentPhase::kIdle, 0, {killed(0)});
  EXPECT_EQ(job_->generation(), Generation(0)) << "b may be starting its workers just now";
  ASSERT_TRUE(told<Stop>("b"));
  say("b", AgentPhase::kIdle, 0);
  EXPECT_EQ(job_->generation(), Generation(1));
}

TEST_F(MembershipTest, AnElasticJobHoldsALastCallAndEndsItWhenItIsFull) {
  start({1, 3});
  beating_ = {"a", "b", "c"};
  join("a");
  EXPECT_EQ(job_->phase(), Membership::Phase::kForming);
  pass(seconds(10));
  join("b");
  pass(seconds(19));
  EXPECT_EQ(job_->phase(), Membership::Phase::kForming);
  pass(seconds(2));
  EXPECT_EQ(job_->phase(), Membership::Phase::kRunning);
  EXPECT_EQ(told<Assignment>("a")->world_size, 2);

  start({1, 2});
  told_.clear();
  join("a");
  join("b");
  EXPECT_TRUE(told<Assignment>("a")) << "full: nobody else could come";
}

TEST_F(MembershipTest, ANewcomerMakesARoomyJobFormAgainWithoutUsingBudget) {
  start({1, 2}, 1);
  beating_ = {"a", "b"};
  join("a");
  pass(seconds(31));
  say("a", AgentPhase::kRunning, 0);
  join("b");
  ASSERT_TRUE(told<Stop>("a"));
  say("a", AgentPhase::kIdle, 0);
  ASSERT_TRUE(told<Assignment>("b"));
  EXPECT_EQ(told<Assignment>("b")->world_size, 2);
  EXPECT_EQ(told<Assignment>("b")->restart_count, 0);
}

TEST_F(MembershipTest, ASurplusNodeIsASpareAndTakesTheNextHole) {
  start({2, 2}, 1);
  join("a");
  join("b");
  join("c");
  ASSERT_TRUE(told<Wait>("c"));
  EXPECT_NE(told<Wait>("c")->reason.find("spare"), std::string::npos);
  say("a", AgentPhase::kRunning, 0);
  say("b", AgentPhase::kRunning, 0);
  beating_ = {"b", "c"};
  pass(seconds(6));
  say("b", AgentPhase::kIdle, 0);
  ASSERT_TRUE(told<Assignment>("c"));
  EXPECT_EQ(told<Assignment>("c")->node_rank, NodeRank(0));
  EXPECT_EQ(told<Assignment>("b")->node_rank, NodeRank(1));
}

TEST_F(MembershipTest, TooFewNodesEndTheJobAtTheJoinDeadlineAndItSaysWhoWasThere) {
  start({2, 2});
  beating_ = {"a"};
  join("a");
  pass(seconds(601));
  ASSERT_TRUE(told<End>("a"));
  EXPECT_EQ(told<End>("a")->verdict.exit_code, 65);
  EXPECT_NE(told<End>("a")->verdict.headline.find("1 of 2 nodes here: a"), std::string::npos);
}

TEST_F(MembershipTest, ASignalToOneNodeEndsAJobOfFixedSizeEverywhere) {
  start({2, 2}, 3);
  join("a");
  join("b");
  say("a", AgentPhase::kRunning, 0);
  say("b", AgentPhase::kRunning, 0);
  AgentStatus leaving{.phase = AgentPhase::kStopping, .generation = Generation(0)};
  leaving.leaving = SIGTERM;
  take(job_->status("id-b", leaving, now_));
  ASSERT_TRUE(told<Stop>("a"));
  // What the stop of b does to a's workers is no failure.
  say("a", AgentPhase::kIdle, 0, {killed(0)});
  take(job_->left("id-b", Leave{SIGTERM, ""}, now_));
  ASSERT_TRUE(told<End>("a"));
  EXPECT_EQ(told<End>("a")->verdict.exit_code, 143);
  EXPECT_EQ(told<End>("a")->verdict.restarts_used, 0);
}

TEST_F(MembershipTest, ASignalToOneNodeLetsAnElasticJobGoOnWithoutIt) {
  start({1, 2}, 0);
  join("a");
  join("b");
  say("a", AgentPhase::kRunning, 0);
  say("b", AgentPhase::kRunning, 0);
  AgentStatus leaving{.phase = AgentPhase::kStopping, .generation = Generation(0)};
  leaving.leaving = SIGTERM;
  take(job_->status("id-b", leaving, now_));
  say("a", AgentPhase::kIdle, 0);
  EXPECT_EQ(job_->generation(), Generation(0)) << "b still ends its workers";
  take(job_->left("id-b", Leave{SIGTERM, ""}, now_));
  ASSERT_TRUE(told<Assignment>("a"));
  EXPECT_EQ(told<Assignment>("a")->world_size, 1);
}

TEST_F(MembershipTest, AnAgentThatEndedItsWorkersByItselfFailsTheGeneration) {
  start({2, 2}, 1);
  join("a");
  join("b");
  say("a", AgentPhase::kRunning, 0);
  say("b", AgentPhase::kRunning, 0);
  say("b", AgentPhase::kIdle, 0);
  ASSERT_TRUE(told<Stop>("a"));
}

TEST_F(MembershipTest, AFinishedNodeRunsAgainWhenAnotherFails) {
  start({2, 2}, 1);
  join("a");
  join("b");
  say("a", AgentPhase::kFinished, 0);
  say("b", AgentPhase::kRunning, 0);
  say("b", AgentPhase::kIdle, 0, {killed(1)});
  ASSERT_TRUE(told<Stop>("a"));
  say("a", AgentPhase::kIdle, 0);
  EXPECT_EQ(told<Assignment>("a")->generation, Generation(1));
}

// --- a job that had an earlier life, in a service that was killed ---

class RecallTest : public MembershipTest {
 protected:
  // A new service knows nothing; the agents still do.
  void restart_service(NodeRange nodes, int max_restarts) {
    start(nodes, max_restarts);
    job_->expect_past(now_ + seconds(5));
    told_.clear();
  }
  void come_back(const std::string& host, int node_rank, AgentPhase phase, int generation,
                 std::vector<WorkerEnd> ends = {}) {
    Hello back = hello(host);
    back.status.phase = phase;
    back.status.generation = Generation(generation);
    back.status.ends = std::move(ends);
    back.assignment = Assignment{.generation = Generation(generation),
                                 .node_rank = NodeRank(node_rank),
                                 .node_count = 2,
                                 .first_rank = Rank(node_rank),
                                 .world_size = 2,
                                 .store_host = "10.0.0.1",
                                 .store_port = 4000,
                                 .restart_count = 2,
                                 .reason = "restart 2 of 3: earlier"};
    take(job_->joined(back, false, now_));
  }
};

TEST_F(RecallTest, ARunningGenerationIsTakenOverWhenAllItsNodesHaveCome) {
  restart_service({2, 2}, 3);
  come_back("a", 0, AgentPhase::kRunning, 7);
  EXPECT_FALSE(told<Stop>("a"));
  join("spare");
  EXPECT_TRUE(told<Wait>("spare")) << "nothing is formed while b may still run its workers";
  come_back("b", 1, AgentPhase::kFinished, 7);
  EXPECT_FALSE(told<Stop>("a") || told<Stop>("b"));
  EXPECT_EQ(job_->phase(), Membership::Phase::kRunning);
  EXPECT_EQ(job_->generation(), Generation(7));
  say("a", AgentPhase::kFinished, 7);
  ASSERT_TRUE(told<End>("a"));
  EXPECT_TRUE(told<End>("a")->verdict.success);
  EXPECT_EQ(told<End>("a")->verdict.restarts_used, 2);
}

TEST_F(RecallTest, TheBudgetThatWasUsedStaysUsed) {
  restart_service({2, 2}, 3);
  come_back("a", 0, AgentPhase::kRunning, 7);
  come_back("b", 1, AgentPhase::kRunning, 7);
  for (const int generation : {7, 8}) {
    say("a", AgentPhase::kIdle, generation, {killed(0)});
    say("b", AgentPhase::kIdle, generation);
    if (generation == 8) break;
    ASSERT_TRUE(told<Assignment>("a"));
    EXPECT_EQ(told<Assignment>("a")->generation, Generation(8));
    EXPECT_EQ(told<Assignment>("a")->restart_count, 3);
  }
  ASSERT_TRUE(told<End>("a"));
  EXPECT_EQ(told<End>("a")->verdict.restarts_used, 3);
}

TEST_F(RecallTest, AFailureDuringTheOutageUsesBudget) {
  restart_service({2, 2}, 3);
  come_back("a", 0, AgentPhase::kRunning, 7);
  come_back("b", 1, AgentPhase::kIdle, 7, {killed(1)});
  ASSERT_TRUE(told<Stop>("a"));
  say("a", AgentPhase::kIdle, 7);
  ASSERT_TRUE(told<Assignment>("a"));
  EXPECT_EQ(told<Assignment>("a")->generation, Generation(8));
  EXPECT_EQ(told<Assignment>("a")->restart_count, 3);
}

TEST_F(RecallTest, AnOutageThatTheAgentsDidNotSitOutUsesNone) {
  restart_service({2, 2}, 3);
  WorkerEnd victim = killed(0);
  victim.after_stop = true;
  come_back("a", 0, AgentPhase::kIdle, 7, {victim});
  EXPECT_FALSE(told<Assignment>("a"));
  come_back("b", 1, AgentPhase::kIdle, 7);
  ASSERT_TRUE(told<Assignment>("b"));
  EXPECT_EQ(told<Assignment>("b")->generation, Generation(8));
  EXPECT_EQ(told<Assignment>("b")->restart_count, 2);
}

TEST_F(RecallTest, NothingIsFormedBeforeTheLeaseOfAMissingNodeIsOver) {
  restart_service({1, 2}, 3);
  beating_ = {"a"};
  come_back("a", 0, AgentPhase::kIdle, 7);
  pass(milliseconds(4900));
  EXPECT_FALSE(told<Assignment>("a")) << "b may still run workers of generation 7";
  pass(milliseconds(200));
  ASSERT_TRUE(told<Assignment>("a"));
  EXPECT_EQ(told<Assignment>("a")->world_size, 1);
}

TEST_F(RecallTest, ANodeThatDoesNotComeBackToARunningGenerationIsLost) {
  restart_service({1, 2}, 3);
  beating_ = {"a"};
  come_back("a", 0, AgentPhase::kRunning, 7);
  pass(milliseconds(4900));
  EXPECT_FALSE(told<Stop>("a"));
  pass(milliseconds(200));
  ASSERT_TRUE(told<Stop>("a"));
  say("a", AgentPhase::kIdle, 7);
  ASSERT_TRUE(told<Assignment>("a"));
  EXPECT_EQ(told<Assignment>("a")->restart_count, 3);
  EXPECT_NE(told<Assignment>("a")->reason.find("node 1"), std::string::npos);
}

TEST_F(RecallTest, WhoRunsAnOlderGenerationThanOthersIsStopped) {
  restart_service({2, 2}, 3);
  come_back("c", 0, AgentPhase::kRunning, 6);
  come_back("a", 0, AgentPhase::kRunning, 7);
  come_back("b", 1, AgentPhase::kRunning, 7);
  EXPECT_EQ(job_->phase(), Membership::Phase::kRunning);
  say("c", AgentPhase::kRunning, 6);
  EXPECT_TRUE(told<Stop>("c"));
  EXPECT_FALSE(told<Stop>("a") || told<Stop>("b"));
}

TEST_F(RecallTest, AJobThatIsToldToEndWhileItIsRecalledEnds) {
  restart_service({2, 2}, 3);
  come_back("a", 0, AgentPhase::kRunning, 7);
  take(job_->left("id-a", Leave{SIGTERM, ""}, now_));
  come_back("b", 1, AgentPhase::kRunning, 7);
  ASSERT_TRUE(told<End>("b"));
  EXPECT_EQ(told<End>("b")->verdict.exit_code, 143);
}

// --- a job whose state was kept ---

// --- what an agent says may be anything that a codec lets through ---

TEST_F(MembershipTest, AGenerationThatNoServiceHasBegunIsNotBelieved) {
  start({1, 1}, 0);
  Hello liar = hello("a");
  liar.status.generation = Generation(kMaxGeneration);
  EXPECT_TRUE(job_->refusal(liar));
  join("a");
  take(job_->status("id-a", {.phase = AgentPhase::kIdle, .generation = Generation(kMaxGeneration)},
                    now_));
  say("a", AgentPhase::kIdle, 0, {killed(0)});
  ASSERT_TRUE(told<End>("a"));
  EXPECT_EQ(job_->generation(), Generation(0));
}

TEST_F(MembershipTest, WhatItKeepsOfAnEndFitsIntoMessages) {
  start({2, 2}, 1);
  join("a");
  join("b");
  WorkerEnd end = killed(0);
  end.code = 65535;
  end.age = kMaxTime;
  end.host = std::string(kMaxNameBytes, 'h');
  end.message = std::string(kMaxTextBytes, 'm');
  say("a", AgentPhase::kIdle, 0, {end});
  say("b", AgentPhase::kIdle, 0);
  ASSERT_TRUE(told<Assignment>("b"));
  EXPECT_LT(told<Assignment>("b")->reason.size(), 4096u);
  end.kind = EndKind::kNotStarted;
  say("a", AgentPhase::kIdle, 1, {end});
  now_ += std::chrono::hours(24);
  say("b", AgentPhase::kIdle, 1);
  ASSERT_TRUE(told<End>("b"));
  const Verdict& verdict = told<End>("b")->verdict;
  EXPECT_LT(verdict.headline.size(), 4096u);
  EXPECT_LE(verdict.ends.front().code, 65535);
  EXPECT_LE(verdict.ends.front().age, kMaxTime);
  EXPECT_LE(verdict.exit_code, 255);
}

class RestoredTest : public MembershipTest {
 protected:
  // The service is killed, and another one goes on with what was kept.
  void restart_service() {
    const JobState kept = job_->state(now_);
    now_ += seconds(2);
    job_.emplace(kept, MembershipOptions{.lease = seconds(5)}, now_);
    told_.clear();
    log_.clear();
  }
  void come_back(const std::string& host, AgentPhase phase, int generation,
                 std::vector<WorkerEnd> ends = {}) {
    Hello back = hello(host);
    back.status.phase = phase;
    back.status.generation = Generation(generation);
    back.status.ends = std::move(ends);
    take(job_->joined(back, false, now_));
  }
  // Generation 1 of 2 nodes runs, and has used one restart of `max_restarts`.
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

TEST_F(RestoredTest, GoesOnWhereItWasWithItsGenerationAndItsBudget) {
  run_second_generation({2, 2}, 3);
  restart_service();
  come_back("a", AgentPhase::kRunning, 1);
  join("newcomer");
  EXPECT_TRUE(told<Wait>("newcomer"));
  EXPECT_FALSE(told<Stop>("a"));
  come_back("b", AgentPhase::kRunning, 1);
  EXPECT_FALSE(told<Stop>("b"));
  EXPECT_EQ(job_->phase(), Membership::Phase::kRunning);
  EXPECT_EQ(job_->generation(), Generation(1));
  EXPECT_EQ(log_.find("lost"), std::string::npos) << log_;
  say("b", AgentPhase::kIdle, 1, {killed(1)});
  say("a", AgentPhase::kIdle, 1);
  ASSERT_TRUE(told<Assignment>("a"));
  EXPECT_EQ(told<Assignment>("a")->restart_count, 2);
}

// Killed when the assignment was safe and one node had been told: the other one is told now.
TEST_F(RestoredTest, WhoWasNotToldOfTheGenerationYetIsToldNow) {
  start({2, 2});
  join("a");
  join("b");
  restart_service();
  come_back("a", AgentPhase::kRunning, 0);
  come_back("b", AgentPhase::kIdle, -1);
  ASSERT_TRUE(told<Assignment>("b"));
  EXPECT_EQ(told<Assignment>("b")->generation, Generation(0));
  EXPECT_FALSE(told<Stop>("a"));
  EXPECT_EQ(job_->phase(), Membership::Phase::kRunning);
}

// The node that failed first is gone; what it said is not.
TEST_F(RestoredTest, AFailureThatWasKnownUsesBudgetAndKeepsItsStory) {
  run_second_generation({1, 2}, 3);
  say("a", AgentPhase::kStopping, 1, {killed(0)});
  ASSERT_TRUE(told<Stop>("b"));
  restart_service();
  beating_ = {"b"};
  WorkerEnd victim = killed(1, seconds(60));
  come_back("b", AgentPhase::kRunning, 1, {victim});
  ASSERT_TRUE(told<Stop>("b"));
  say("b", AgentPhase::kIdle, 1);
  EXPECT_FALSE(told<Assignment>("b")) << "a may still have workers";
  pass(seconds(6));
  ASSERT_TRUE(told<Assignment>("b"));
  EXPECT_EQ(told<Assignment>("b")->generation, Generation(2));
  EXPECT_EQ(told<Assignment>("b")->restart_count, 2);
  EXPECT_NE(told<Assignment>("b")->reason.find("rank 0"), std::string::npos)
      << told<Assignment>("b")->reason;
}

TEST_F(RestoredTest, ABudgetThatWasUsedUpStaysUsedUp) {
  run_second_generation({2, 2}, 1);
  say("a", AgentPhase::kStopping, 1, {killed(0)});
  restart_service();
  come_back("a", AgentPhase::kIdle, 1, {killed(0)});
  come_back("b", AgentPhase::kIdle, 1);
  ASSERT_TRUE(told<End>("a"));
  EXPECT_EQ(told<End>("a")->verdict.exit_code, 128 + SIGKILL);
  EXPECT_EQ(told<End>("a")->verdict.restarts_used, 1);
}

TEST_F(RestoredTest, ARestartThatWaitsForANodeIsCountedOnce) {
  run_second_generation({2, 2}, 2);
  beating_ = {"a"};
  pass(milliseconds(5100));  // b is lost
  say("a", AgentPhase::kIdle, 1);
  EXPECT_TRUE(told<Wait>("a")) << "the second restart has been counted, and needs another node";
  restart_service();
  come_back("a", AgentPhase::kIdle, 1);
  pass(milliseconds(5100));
  EXPECT_FALSE(told<End>("a"));
  join("c");
  ASSERT_TRUE(told<Assignment>("a"));
  EXPECT_EQ(told<Assignment>("a")->restart_count, 2);
  EXPECT_NE(told<Assignment>("a")->reason.find("node 1 (b)"), std::string::npos)
      << told<Assignment>("a")->reason;
}

TEST_F(RestoredTest, AnOutageThatTheAgentsDidNotSitOutUsesNoBudget) {
  run_second_generation({2, 2}, 3);
  restart_service();
  WorkerEnd victim = killed(0);
  victim.after_stop = true;
  come_back("a", AgentPhase::kIdle, 1, {victim});
  EXPECT_FALSE(told<Assignment>("a"));
  come_back("b", AgentPhase::kIdle, 1);
  ASSERT_TRUE(told<Assignment>("b"));
  EXPECT_EQ(told<Assignment>("b")->generation, Generation(2));
  EXPECT_EQ(told<Assignment>("b")->restart_count, 1);
  EXPECT_EQ(told<Assignment>("b")->node_rank, NodeRank(1)) << "every node keeps its place";
}

TEST_F(RestoredTest, ANodeThatDoesNotComeBackIsLostAndNamed) {
  run_second_generation({1, 2}, 3);
  restart_service();
  beating_ = {"a"};
  come_back("a", AgentPhase::kRunning, 1);
  pass(milliseconds(4900));
  EXPECT_FALSE(told<Stop>("a"));
  pass(milliseconds(200));
  ASSERT_TRUE(told<Stop>("a"));
  EXPECT_NE(told<Stop>("a")->reason.find("node 1 (b)"), std::string::npos)
      << told<Stop>("a")->reason;
  say("a", AgentPhase::kIdle, 1);
  ASSERT_TRUE(told<Assignment>("a"));
  EXPECT_EQ(told<Assignment>("a")->restart_count, 2);
}

// As after a loss of power in the whole room: other agents go on with the job.
TEST_F(RestoredTest, AGenerationOfWhichNobodyComesBackUsesNoBudget) {
  run_second_generation({2, 2}, 3);
  restart_service();
  beating_ = {"c", "d"};
  join("c");
  join("d");
  EXPECT_FALSE(told<Assignment>("c"));
  pass(milliseconds(5100));
  ASSERT_TRUE(told<Assignment>("c"));
  EXPECT_EQ(told<Assignment>("c")->generation, Generation(2));
  EXPECT_EQ(told<Assignment>("c")->restart_count, 1);
  EXPECT_EQ(told<Assignment>("c")->reason, "the rendezvous service was restarted");
}

TEST_F(RestoredTest, AJobThatWasToldToEndEndsWhenNothingOfItIsLeft) {
  run_second_generation({2, 2}, 3);
  AgentStatus leaving{.phase = AgentPhase::kStopping, .generation = Generation(1)};
  leaving.leaving = SIGTERM;
  take(job_->status("id-a", leaving, now_));
  restart_service();
  come_back("b", AgentPhase::kRunning, 1);
  EXPECT_TRUE(told<Stop>("b"));
  say("b", AgentPhase::kIdle, 1);
  EXPECT_FALSE(told<End>("b")) << "a may still have workers";
  come_back("a", AgentPhase::kIdle, 1);
  ASSERT_TRUE(told<End>("b"));
  EXPECT_EQ(told<End>("b")->verdict.exit_code, 128 + SIGTERM);
}

TEST_F(RestoredTest, AVerdictIsToldToWhoComesLate) {
  run_second_generation({2, 2}, 3);
  say("a", AgentPhase::kFinished, 1);
  say("b", AgentPhase::kFinished, 1);
  restart_service();
  EXPECT_EQ(job_->deadline(), std::nullopt);
  come_back("b", AgentPhase::kFinished, 1);
  ASSERT_TRUE(told<End>("b"));
  EXPECT_TRUE(told<End>("b")->verdict.success);
}

// Nobody knows who else had been admitted before the first generation.
TEST_F(RestoredTest, AJobThatNeverRanWaitsForThoseOnTheirWayBack) {
  start({1, 3});
  join("a");
  restart_service();
  beating_ = {"a", "c"};
  come_back("a", AgentPhase::kIdle, -1);
  come_back("c", AgentPhase::kIdle, -1);
  EXPECT_FALSE(told<Assignment>("a"));
  pass(milliseconds(4900));
  EXPECT_FALSE(told<Assignment>("a"));
  pass(seconds(31));  // and a last call
  ASSERT_TRUE(told<Assignment>("a"));
  EXPECT_EQ(told<Assignment>("a")->generation, Generation(0));
}

TEST_F(RestoredTest, AJobThatNeverRanBeginsWhenItIsFull) {
  start({2, 2});
  join("a");
  restart_service();
  join("b");
  EXPECT_FALSE(told<Assignment>("b"));
  come_back("a", AgentPhase::kIdle, -1);
  EXPECT_TRUE(told<Assignment>("a"));
}

TEST_F(RestoredTest, KilledAgainWhileItIsRecalledNothingIsForgotten) {
  run_second_generation({2, 2}, 3);
  restart_service();
  come_back("a", AgentPhase::kRunning, 1);
  restart_service();
  come_back("b", AgentPhase::kRunning, 1);
  come_back("a", AgentPhase::kRunning, 1);
  EXPECT_EQ(job_->phase(), Membership::Phase::kRunning);
  EXPECT_EQ(job_->generation(), Generation(1));
  EXPECT_FALSE(told<Stop>("a") || told<Stop>("b"));
}

TEST_F(MembershipTest, TheStoresHostIsReachableFromOtherNodes) {
  start({2, 2});
  job_->set_service_address("10.0.0.9");
  job_->set_service_address("127.0.1.1");  // as an agent beside the service sees it
  Hello host = hello("a");
  host.node.address = "127.0.0.1";  // it reached the service through loopback
  take(job_->joined(host, true, now_));
  join("b");
  ASSERT_TRUE(told<Assignment>("b"));
  EXPECT_EQ(told<Assignment>("b")->store_host, "10.0.0.9");
}

// --- what is seen from outside ---

TEST_F(MembershipTest, KeepsItsLogLinesAsEventsWithTheirTimes) {
  start({1, 1}, 1);
  join("node0");
  const TimePoint failed_at = now_ += seconds(7);
  say("node0", AgentPhase::kIdle, 0, {killed(0)});
  const std::deque<JobEvent>& events = job_->events();
  std::string told;
  for (const JobEvent& event : events) told += event.what + "\n";
  EXPECT_EQ(told, log_);
  EXPECT_EQ(events.front().when, failed_at - seconds(7));
  EXPECT_EQ(events.front().what, "node0 joined job 'job' with 1 slots (1 of 1 nodes here: node0)");
  EXPECT_EQ(events.back().when, failed_at);
  EXPECT_NE(events.back().what.find("generation 1"), std::string::npos);
}

TEST_F(MembershipTest, ItsEventsAreBoundedInNumberAndLength) {
  start({2, 2});
  const std::string host(kMaxNameBytes, 'h');
  for (std::size_t i = 0; i < Membership::kEventsKept + 5; ++i) {
    now_ += seconds(1);
    join(host);
    job_->disconnected("id-" + host);
  }
  EXPECT_EQ(job_->events().size(), Membership::kEventsKept);
  EXPECT_EQ(job_->events().back().when, now_);
  for (const JobEvent& event : job_->events()) {
    EXPECT_LE(event.what.size(), Membership::kEventBytes);
  }
}

TEST_F(MembershipTest, SaysWhatHappenedForThoseWhoCount) {
  start({2, 2}, 1);
  join("node0");
  join("node1");
  EXPECT_EQ(counted_.generations_formed, 1);
  say("node0", AgentPhase::kIdle, 0, {killed(0)});
  say("node1", AgentPhase::kIdle, 0);
  EXPECT_EQ(counted_.restarts, 1);
  EXPECT_EQ(counted_.generations_formed, 2);
  EXPECT_EQ(counted_.lease_losses, 0);
  beating_ = {"node0"};
  pass(seconds(6));
  EXPECT_EQ(counted_.lease_losses, 1);
  EXPECT_EQ(counted_.restarts, 1) << "the budget was used up";
}

}  // namespace
}  // namespace ddprun
