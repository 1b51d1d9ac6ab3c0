#include "base/exit_codes.h"
#include "base/seconds.h"
#include "tests/rendezvous/membership/core/fixture.h"

namespace ddprun {
namespace {

using MembershipFailureTest = testing_support::MembershipFixture;
using std::chrono::milliseconds;
using std::chrono::seconds;

TEST_F(MembershipFailureTest, ARankThatLeftAnotherNodeEarlyIsTheFirstFailure) {
  start({2, 2});
  join("a");
  join("b", 2);
  WorkerEnd victim{.kind = EndKind::kSignaled, .code = SIGABRT, .blames = 2};
  victim.host = "a";
  AgentStatus left{.phase = AgentPhase::kFinished, .generation = Generation(0)};
  left.left = {LocalRank(0), LocalRank(1), LocalRank(7)};
  take(job_->status("id-b", left, now_));
  say("a", AgentPhase::kStopping, 0, {victim});
  say("a", AgentPhase::kIdle, 0, {victim});
  left.phase = AgentPhase::kIdle;
  take(job_->status("id-b", left, now_));
  ASSERT_TRUE(received<End>("a"));
  const Verdict& verdict = received<End>("a")->verdict;
  ASSERT_EQ(verdict.ends.size(), 2u);
  EXPECT_EQ(describe(verdict.ends[0]),
            "rank 2 (local rank 1 on b) exited with code 0 while other ranks still needed it");
  EXPECT_EQ(verdict.ends[0].node_rank, NodeRank(1));
  EXPECT_EQ(verdict.exit_code, 128 + SIGABRT);
}

TEST_F(MembershipFailureTest, TheEarliestEndIsTheFirstFailureWhateverArrivesFirst) {
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
  ASSERT_TRUE(received<End>("a"));
  EXPECT_EQ(received<End>("a")->verdict.ends.front().rank, Rank(1));
  EXPECT_EQ(received<End>("a")->verdict.exit_code, 137);
}

TEST_F(MembershipFailureTest, TheVerdictOnAThousandEndsTellsOfTheLikeliestAndCountsTheRest) {
  start({10, 10});
  for (int node = 0; node < 10; ++node) join("n" + std::to_string(node), 100);
  for (int node = 0; node < 10; ++node) {
    std::vector<WorkerEnd> ends;
    for (int i = 0; i < 100; ++i) {
      ends.push_back(killed(node * 100 + i, milliseconds(node == 7 && i == 42 ? 50 : 10)));
    }
    say("n" + std::to_string(node), AgentPhase::kIdle, 0, std::move(ends));
  }
  ASSERT_TRUE(received<End>("n0"));
  const Verdict& verdict = received<End>("n0")->verdict;
  EXPECT_EQ(verdict.ends.size(), kMaxEnds);
  EXPECT_EQ(verdict.ends.front().rank, Rank(742)) << "it came after more ends than are kept";
  EXPECT_EQ(verdict.more_ends, 1000 - static_cast<int>(kMaxEnds));
}

TEST_F(MembershipFailureTest, AWorkerThatCannotBeStartedIsNotTriedAgain) {
  start({1, 1}, 5);
  join("a");
  WorkerEnd end{.kind = EndKind::kNotStarted, .code = 8, .message = "exec: Exec format error"};
  say("a", AgentPhase::kIdle, 0, {end});
  ASSERT_TRUE(received<End>("a"));
  EXPECT_EQ(received<End>("a")->verdict.exit_code, 64);
  EXPECT_EQ(received<End>("a")->verdict.restarts_used, 0);
}

TEST_F(MembershipFailureTest, WhomTheOnlyKnownVictimBlamesIsTheFirstFailureAlsoWhenItWasStopped) {
  start({2, 2});
  join("a");
  join("b");
  say("a", AgentPhase::kRunning, 0);
  say("b", AgentPhase::kRunning, 0);
  WorkerEnd victim = killed(0, milliseconds(100));
  victim.blames = 1;
  WorkerEnd culprit{.kind = EndKind::kSignaled, .code = 11, .after_stop = true, .rank = Rank(1)};
  say("a", AgentPhase::kIdle, 0, {victim});
  say("b", AgentPhase::kIdle, 0, {culprit});
  ASSERT_TRUE(received<End>("a"));
  EXPECT_EQ(received<End>("a")->verdict.exit_code, 128 + 11);
}

TEST_F(MembershipFailureTest, WhatItKeepsOfAnEndFitsIntoMessages) {
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
  ASSERT_TRUE(received<Assignment>("b"));
  EXPECT_LT(received<Assignment>("b")->reason.size(), 4096u);
  end.kind = EndKind::kNotStarted;
  say("a", AgentPhase::kIdle, 1, {end});
  now_ += std::chrono::hours(24);
  say("b", AgentPhase::kIdle, 1);
  ASSERT_TRUE(received<End>("b"));
  const Verdict& verdict = received<End>("b")->verdict;
  EXPECT_LT(verdict.headline.size(), 4096u);
  EXPECT_LE(verdict.ends.front().code, 65535);
  EXPECT_LE(verdict.ends.front().age, kMaxTime);
  EXPECT_LE(verdict.exit_code, 255);
}

TEST_F(MembershipFailureTest, AnExitCodeThatIsFinalEndsTheJobAndTheVerdictSaysWhy) {
  JobSpec spec;
  spec.max_restarts = 9;
  spec.restart_rules.final_codes = {{137, 137}};
  start(spec);
  join("a");
  fail({"a"}, "a");
  ASSERT_TRUE(job_->verdict());
  EXPECT_EQ(job_->verdict()->exit_code, 137);
  EXPECT_THAT(job_->verdict()->headline,
              testing::HasSubstr("; not restarted: exit code 137 is one of --no-restart-on"));
  EXPECT_EQ(job_->restarts_used(), 0);
}

class MembershipHangTest : public MembershipFailureTest {
 protected:
  void say_seen(const std::string& host, AgentPhase phase, std::vector<WorkerSnapshot> snapshots,
                std::vector<WorkerEnd> ends = {}) {
    AgentStatus status{.phase = phase,
                       .generation = job_->generation(),
                       .ends = std::move(ends),
                       .store_port = 4001};
    status.snapshots = std::move(snapshots);
    take(job_->status("id-" + host, status, now_));
  }
  static WorkerSnapshot waiting(int rank) {
    return {.rank = Rank(rank),
            .flight = FlightState::kWaiting,
            .collective = 57,
            .call = "barrier",
            .waited = seconds(60)};
  }
  static WorkerSnapshot absent(int rank) {
    return {.rank = Rank(rank), .flight = FlightState::kOutside, .collective = 56};
  }
  static WorkerEnd stopped(int rank) {
    WorkerEnd end = killed(rank);
    end.after_stop = true;
    return end;
  }
};

TEST_F(MembershipHangTest, EveryNodeLooksBeforeItStopsAndTheMissingRankIsTheFirstFailure) {
  start({2, 2}, 1);
  join("a");
  join("b");
  for (const char* host : {"a", "b"}) say(host, AgentPhase::kRunning, 0);
  say_seen("a", AgentPhase::kRunning, {waiting(0)});
  for (const char* host : {"a", "b"}) {
    ASSERT_TRUE(received<Stop>(host)) << host;
    EXPECT_TRUE(received<Stop>(host)->look) << host;
  }
  say_seen("a", AgentPhase::kIdle, {waiting(0)}, {stopped(0)});
  say_seen("b", AgentPhase::kIdle, {absent(1)}, {stopped(1)});
  const Assignment* next = received<Assignment>("a");
  ASSERT_TRUE(next);
  ASSERT_TRUE(next->failure);
  const Verdict& failed = *next->failure;
  EXPECT_EQ(failed.ends.front().kind, EndKind::kHung);
  EXPECT_EQ(failed.ends.front().rank, Rank(1)) << "rank 0 was the first to be noticed";
  EXPECT_EQ(failed.ends.front().host, "b");
  EXPECT_THAT(failed.headline, HasSubstr("it has not come to barrier (collective 57)"));
  EXPECT_EQ(failed.seen.size(), 2u);
  ASSERT_TRUE(received<Assignment>("b")->failure) << "the node that failed is told, too";
  EXPECT_EQ(job_->restarts_used(), 1);
}

TEST_F(MembershipHangTest, WithoutARestartTheJobEndsWithTheCodeForIt) {
  start({1, 1});
  join("a");
  say("a", AgentPhase::kRunning, 0);
  say_seen("a", AgentPhase::kRunning, {absent(0)});
  say_seen("a", AgentPhase::kIdle, {absent(0)}, {stopped(0)});
  ASSERT_TRUE(job_->verdict());
  EXPECT_EQ(job_->verdict()->exit_code, to_int(ExitCode::kHung));
}

TEST_F(MembershipHangTest, AWorkerThatFailedBeforeIsStillTheFirst) {
  start({2, 2});
  join("a");
  join("b");
  for (const char* host : {"a", "b"}) say(host, AgentPhase::kRunning, 0);
  say("b", AgentPhase::kStopping, 0, {killed(1)});
  say_seen("a", AgentPhase::kRunning, {waiting(0)});
  say("b", AgentPhase::kIdle, 0, {killed(1)});
  say_seen("a", AgentPhase::kIdle, {waiting(0)}, {stopped(0)});
  ASSERT_TRUE(job_->verdict());
  EXPECT_EQ(job_->verdict()->ends.front().kind, EndKind::kSignaled);
  EXPECT_TRUE(job_->verdict()->seen.empty());
}

TEST_F(MembershipHangTest, OneNodeIsBlamedForItAndSeveralAreNot) {
  JobSpec spec;
  spec.nodes = {2, 2};
  spec.max_restarts = 5;
  spec.node_failures = 1;
  start(spec);
  join("a");
  join("b");
  for (const char* host : {"a", "b"}) say(host, AgentPhase::kRunning, 0);
  say_seen("a", AgentPhase::kRunning, {waiting(0)});
  say_seen("a", AgentPhase::kIdle, {waiting(0)});
  say_seen("b", AgentPhase::kIdle, {waiting(1)});
  EXPECT_TRUE(job_->state(now_).node_failures.empty()) << "both were there, and it did not end";
  for (const char* host : {"a", "b"}) say(host, AgentPhase::kRunning, 1);
  say_seen("a", AgentPhase::kRunning, {waiting(0)});
  say_seen("a", AgentPhase::kIdle, {waiting(0)});
  say_seen("b", AgentPhase::kIdle, {absent(1)});
  EXPECT_EQ(job_->state(now_).node_failures.at("b"), 1);
}

TEST_F(MembershipHangTest, ProgressThatIsReportedRefillsTheBudget) {
  JobSpec spec;
  spec.max_restarts = 1;
  spec.restart_rules.on_progress = true;
  start(spec);
  join("a");
  for (int generation = 0; generation < 5; ++generation) {
    say("a", AgentPhase::kRunning, generation);
    live(RestartBudget::kQuick);
    WorkerEnd end = killed(0);
    end.step = 10 * generation;
    AgentStatus status{.phase = AgentPhase::kIdle,
                       .generation = Generation(generation),
                       .ends = {end},
                       .store_port = 4001,
                       .step = 10 * generation};
    take(job_->status("id-a", status, now_));
    ASSERT_TRUE(received<Assignment>("a")) << generation;
  }
  EXPECT_EQ(job_->restarts_used(), 5);
  EXPECT_EQ(job_->state(now_).strikes, (Strikes{.step = 40, .in_a_row = 1, .restarts = 1}));
}

}  // namespace
}  // namespace ddprun
