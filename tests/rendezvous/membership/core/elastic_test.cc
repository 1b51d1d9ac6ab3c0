// Tests jobs that grow and shrink: when a node joins, which node a spare replaces, and which
// nodes are missing.
#include "tests/rendezvous/membership/core/fixture.h"

namespace ddprun {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;
using testing::Not;

class ElasticTest : public testing_support::MembershipFixture {
 protected:
  static JobSpec spec(NodeRange nodes, OnJoin on_join = OnJoin::kNow) {
    return {.id = "job",
            .nodes = nodes,
            .max_restarts = 20,
            .join_timeout = seconds(600),
            .last_call = Duration(0),
            .on_join = on_join};
  }
  // Starts a job of 1:2 nodes that runs on node a.
  void run_on_one(OnJoin on_join) {
    start(spec({1, 2}, on_join));
    join("a");
    say("a", AgentPhase::kRunning, 0);
    received_.clear();
  }
  void announce(const std::string& host, std::int64_t checkpoints) {
    take(job_->status("id-" + host,
                      {.phase = AgentPhase::kRunning,
                       .generation = job_->generation(),
                       .store_port = 4001,
                       .checkpoints = checkpoints},
                      now_));
  }
  void leave(const std::string& host) {
    take(job_->status(
        "id-" + host,
        {.phase = AgentPhase::kStopping, .generation = job_->generation(), .leaving = SIGTERM},
        now_));
    take(job_->left("id-" + host, Leave{SIGTERM, ""}, now_));
  }
  std::string reason(const std::string& host) {
    const Assignment* assignment = received<Assignment>(host);
    return assignment ? assignment->reason : "no assignment";
  }
};

// --- when nodes join ---

TEST_F(ElasticTest, OnJoinCheckpointANewcomerWaitsForTheNextAnnouncement) {
  run_on_one(OnJoin::kCheckpoint);
  announce("a", 2);
  join("b");
  ASSERT_TRUE(received<Wait>("b"));
  EXPECT_THAT(received<Wait>("b")->reason, HasSubstr("--on-join=checkpoint"));
  announce("a", 2);
  EXPECT_FALSE(received<Stop>("a")) << "that one was announced before it came";
  announce("a", 3);
  ASSERT_TRUE(received<Stop>("a"));
  say("a", AgentPhase::kIdle, 0);
  ASSERT_TRUE(received<Assignment>("b"));
  EXPECT_EQ(received<Assignment>("b")->world_size, 2);
  EXPECT_EQ(received<Assignment>("b")->restart_count, 0);
  EXPECT_EQ(reason("b"), "a node joined at a checkpoint");
}

TEST_F(ElasticTest, ACheckpointForWhichNobodyWaitsChangesNothing) {
  run_on_one(OnJoin::kCheckpoint);
  announce("a", 1);
  announce("a", 2);
  EXPECT_FALSE(received<Stop>("a"));
  EXPECT_EQ(job_->phase(), JobPhase::kRunning);
  join("b");
  join("spare");  // only one of them has a place
  announce("a", 3);
  say("a", AgentPhase::kIdle, 0);
  say("a", AgentPhase::kRunning, 1);
  say("b", AgentPhase::kRunning, 1);
  received_.clear();
  announce("a", 1);
  EXPECT_FALSE(received<Stop>("a")) << "the job is full";
}

TEST_F(ElasticTest, AnAnnouncementThatWasLostWithItsConnectionCountsWhenItsNodeIsBack) {
  run_on_one(OnJoin::kCheckpoint);
  join("b");
  job_->disconnected("id-a");
  Hello back = hello("a");
  back.status.phase = AgentPhase::kRunning;
  back.status.generation = Generation(0);
  back.status.checkpoints = 1;
  take(job_->joined(back, false, now_));
  EXPECT_TRUE(received<Stop>("a"));
}

TEST_F(ElasticTest, WhatWasAnnouncedBeforeTheServiceWasRestartedIsNoNewCheckpoint) {
  run_on_one(OnJoin::kCheckpoint);
  announce("a", 4);
  job_.emplace(job_->state(now_), kDefaultLease, now_);
  received_.clear();
  join("b");
  Hello back = hello("a");
  back.status.phase = AgentPhase::kRunning;
  back.status.generation = Generation(0);
  back.status.checkpoints = 4;
  take(job_->joined(back, false, now_));
  ASSERT_EQ(job_->phase(), JobPhase::kRunning);
  EXPECT_FALSE(received<Stop>("a"));
  announce("a", 5);
  EXPECT_TRUE(received<Stop>("a"));
}

// Node b was cut off. It is still ending its old workers when the checkpoint is announced.
TEST_F(ElasticTest, ANodeThatIsNotReadyAtTheCheckpointWaitsForTheNext) {
  run_on_one(OnJoin::kCheckpoint);
  Hello late = hello("b");
  late.status.phase = AgentPhase::kStopping;
  late.status.generation = Generation(0);
  take(job_->joined(late, false, now_));
  announce("a", 1);
  say("b", AgentPhase::kIdle, 0);
  EXPECT_FALSE(received<Stop>("a"));
  announce("a", 2);
  EXPECT_TRUE(received<Stop>("a"));
}

TEST_F(ElasticTest, OnJoinRestartANewcomerWaitsForTheNextGeneration) {
  run_on_one(OnJoin::kRestart);
  join("b");
  ASSERT_TRUE(received<Wait>("b"));
  EXPECT_THAT(received<Wait>("b")->reason, HasSubstr("--on-join=restart"));
  announce("a", 1);
  EXPECT_FALSE(received<Stop>("a"));
  fail({"a"}, "a");
  ASSERT_TRUE(received<Assignment>("b"));
  EXPECT_EQ(received<Assignment>("b")->world_size, 2);
}

TEST_F(ElasticTest, WhoWantsAnotherElasticityThanTheJobIsRefused) {
  run_on_one(OnJoin::kCheckpoint);
  Hello other = hello("b");
  other.job.on_join = OnJoin::kNow;
  ASSERT_TRUE(job_->refusal(other));
  EXPECT_THAT(*job_->refusal(other), HasSubstr("--on-join"));
  other = hello("b");
  other.job.node_failures = 7;
  ASSERT_TRUE(job_->refusal(other));
  EXPECT_THAT(*job_->refusal(other), HasSubstr("--node-failures=3, not 7"));
}

TEST_F(ElasticTest, SparesTakeOverInTheNextGenerationWithoutALastCall) {
  JobSpec slow = spec({2, 3});
  slow.last_call = seconds(300);
  start(slow);
  for (const char* host : {"a", "b", "c", "d"}) join(host);
  fail({"a", "b", "c"}, "c");
  EXPECT_EQ(received<Assignment>("c")->generation, Generation(1));
  for (const char* host : {"a", "b", "c"}) say(host, AgentPhase::kRunning, 1);
  leave("c");
  say("a", AgentPhase::kIdle, 1);
  say("b", AgentPhase::kIdle, 1);
  ASSERT_TRUE(received<Assignment>("d"));
  EXPECT_EQ(received<Assignment>("d")->node_rank, NodeRank(2));
}

// --- nodes that fail ---

TEST_F(ElasticTest, ANodeThatFailsWhereOthersDoNotIsReplacedByASpare) {
  start(spec({2, 2}));
  for (const char* host : {"a", "b", "c"}) join(host);
  for (int i = 0; i < 2; ++i) fail({"a", "b"}, "a");
  EXPECT_EQ(received<Assignment>("a")->generation, Generation(2)) << "twice may be bad luck";
  fail({"a", "b"}, "a");
  ASSERT_TRUE(received<Assignment>("c"));
  EXPECT_EQ(received<Assignment>("c")->generation, Generation(3));
  EXPECT_EQ(received<Assignment>("c")->node_rank, NodeRank(0)) << "it takes the place";
  EXPECT_EQ(received<Assignment>("b")->node_rank, NodeRank(1)) << "others keep theirs";
  EXPECT_THAT(reason("b"),
              HasSubstr("c replaces a, whose workers were the first to fail in 3 generations"));
  EXPECT_THAT(log_, HasSubstr("the workers of a were the first to fail in 3 generations"));
  Hello asks = hello("a");
  asks.status = {.phase = AgentPhase::kIdle, .generation = Generation(2)};
  take(job_->joined(asks, false, now_));
  ASSERT_TRUE(received<Wait>("a"));
  EXPECT_THAT(received<Wait>("a")->reason, HasSubstr("spare; the workers of a were the first"));
}

TEST_F(ElasticTest, ANodeThatFailsStaysWhereNobodyElseIsThere) {
  start(spec({2, 2}));
  join("a");
  join("b");
  for (int i = 0; i < 4; ++i) fail({"a", "b"}, "a");
  ASSERT_TRUE(received<Assignment>("a"));
  EXPECT_EQ(received<Assignment>("a")->generation, Generation(4));
  EXPECT_EQ(received<Assignment>("a")->node_rank, NodeRank(0));
}

TEST_F(ElasticTest, ANodeThatWasReplacedIsUsedAgainWhenThereAreNotEnoughOthers) {
  start(spec({2, 2}));
  for (const char* host : {"a", "b", "c"}) join(host);
  for (int i = 0; i < 3; ++i) fail({"a", "b"}, "a");
  beating_ = {"a", "c"};
  say("b", AgentPhase::kRunning, 3);
  say("c", AgentPhase::kRunning, 3);
  pass(milliseconds(5100));  // b is lost
  say("c", AgentPhase::kIdle, 3);
  ASSERT_TRUE(received<Assignment>("a"));
  EXPECT_EQ(received<Assignment>("a")->generation, Generation(4));
}

TEST_F(ElasticTest, WhereEveryNodeFailsNoneIsReplacedForIt) {
  start(spec({2, 2}));
  for (const char* host : {"a", "b", "c"}) join(host);
  for (int i = 0; i < 3; ++i) fail({"a", "b"}, "a");
  for (int i = 0; i < 3; ++i) fail({"b", "c"}, "c");
  EXPECT_EQ(received<Assignment>("c")->generation, Generation(6)) << "a has failed as often";
  fail({"b", "c"}, "c");
  EXPECT_EQ(received<Assignment>("a")->generation, Generation(7)) << "c has failed more often";
}

TEST_F(ElasticTest, ANodeThatIsLostOrEndsAsAVictimIsNotBlamed) {
  JobSpec strict = spec({1, 2});
  strict.node_failures = 1;
  start(strict);
  join("a");
  join("b");
  beating_ = {"a"};
  say("a", AgentPhase::kRunning, 0);
  say("b", AgentPhase::kRunning, 0);
  pass(milliseconds(5100));
  say("a", AgentPhase::kIdle, 0);
  EXPECT_THAT(log_, Not(HasSubstr("--node-failures")));
  EXPECT_TRUE(job_->state(now_).node_failures.empty());
}

TEST_F(ElasticTest, FailuresOfANodeOutliveTheService) {
  start(spec({2, 2}));
  for (const char* host : {"a", "b", "c"}) join(host);
  for (int i = 0; i < 2; ++i) fail({"a", "b"}, "a");
  job_.emplace(job_->state(now_), kDefaultLease, now_);
  received_.clear();
  for (const char* host : {"a", "b", "c"}) {
    Hello back = hello(host);
    if (*host != 'c') back.status = {.phase = AgentPhase::kRunning, .generation = Generation(2)};
    take(job_->joined(back, false, now_));
  }
  ASSERT_EQ(job_->phase(), JobPhase::kRunning);
  fail({"a", "b"}, "a");
  EXPECT_THAT(reason("c"), HasSubstr("c replaces a"));
}

TEST_F(ElasticTest, TheVerdictNamesTheNodeThatFailedAgainAndAgain) {
  JobSpec short_of_budget = spec({1, 1});
  short_of_budget.max_restarts = 2;
  start(short_of_budget);
  join("a");
  for (int i = 0; i < 3; ++i) fail({"a"}, "a");
  ASSERT_TRUE(received<End>("a"));
  EXPECT_THAT(received<End>("a")->verdict.headline,
              HasSubstr("the workers of a were the first to fail in 3 generations"));
}

// --- too few nodes ---

TEST_F(ElasticTest, BelowMinTheJobWaitsThenFailsAndSaysWhoWasThereAndWhoWasMissing) {
  JobSpec patient = spec({2, 3});
  patient.last_call = seconds(30);
  start(patient);
  for (const char* host : {"a", "b", "c"}) join(host);
  beating_ = {"a"};
  for (const char* host : {"a", "b", "c"}) say(host, AgentPhase::kRunning, 0);
  leave("c");
  pass(milliseconds(5100));  // b is lost
  say("a", AgentPhase::kIdle, 0);
  ASSERT_TRUE(received<Wait>("a"));
  EXPECT_EQ(received<Wait>("a")->reason, "1 of 2:3 nodes here: a; missing: c, b");
  pass(seconds(590));
  EXPECT_FALSE(received<End>("a"));
  job_.emplace(job_->state(now_), kDefaultLease, now_);
  Hello back = hello("a");
  back.status = {.phase = AgentPhase::kIdle, .generation = Generation(0)};
  take(job_->joined(back, false, now_));
  pass(seconds(610));
  ASSERT_TRUE(received<End>("a"));
  EXPECT_EQ(received<End>("a")->verdict.exit_code, 65);
  EXPECT_EQ(received<End>("a")->verdict.headline,
            "not enough nodes within 10.0 min (--rdzv-conf=join_timeout): 1 of 2:3 nodes here: a; "
            "missing: c, b");
}

TEST_F(ElasticTest, WhoComesBackIsNotMissing) {
  start(spec({2, 3}));
  join("a");
  join("b");
  beating_ = {"a"};
  say("a", AgentPhase::kRunning, 0);
  say("b", AgentPhase::kRunning, 0);
  pass(milliseconds(5100));
  Hello back = hello("b");
  back.status = {.phase = AgentPhase::kStopping, .generation = Generation(0)};
  take(job_->joined(back, false, now_));
  EXPECT_TRUE(job_->state(now_).missing.empty());
}

TEST_F(ElasticTest, WhereEveryNodeHasItsRankTheMissingOnesAreNamed) {
  start(spec({4, 4}));
  for (const int rank : {0, 2}) {
    Hello first = hello("n" + std::to_string(rank));
    first.node.node_rank = rank;
    take(job_->joined(first, false, now_));
  }
  ASSERT_TRUE(received<Wait>("n2"));
  EXPECT_EQ(received<Wait>("n2")->reason,
            "2 of 4 nodes here: n0, n2; missing: node rank 1, node rank 3");
}

TEST_F(ElasticTest, AnAssignmentSaysTheLease) {
  job_.emplace(spec({1, 1}), seconds(20), now_);
  join("a");
  EXPECT_EQ(received<Assignment>("a")->lease, seconds(20));
}

TEST_F(ElasticTest, ANodeThatIsReplacedIsToldOfTheGenerationThatItHasNoPartIn) {
  JobSpec job = spec({1, 1});
  job.node_failures = 1;
  start(job);
  join("a");
  join("spare");
  fail({"a"}, "a");
  ASSERT_TRUE(received<Assignment>("spare"));
  ASSERT_TRUE(received<Wait>("a"));
  EXPECT_EQ(received<Wait>("a")->generation, Generation(1));
}

}  // namespace
}  // namespace ddprun
