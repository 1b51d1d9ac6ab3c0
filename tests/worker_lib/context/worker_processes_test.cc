// Tests workers as real processes over the cpu backend: whole runs, and runs in which one
// worker is killed from outside at a random moment. What each worker does is in
// worker_main.cc.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

#include "base/rng.h"
#include "tests/support/eventually.h"
#include "tests/support/program.h"
#include "tests/support/running_store.h"
#include "tests/support/test_seed.h"
#include "tests/support/worker_cluster.h"
#include "tests/support/worker_failure.h"

namespace ddprun {
namespace {

using std::chrono::seconds;
using testing::HasSubstr;
using testing_support::eventually;
using testing_support::failure_in;
using testing_support::kFailedAsExpected;
using testing_support::WorkerCluster;
using testing_support::WorkerFailure;

std::vector<std::string> play(const std::string& name) {
  return {testing_support::program("worker_test_rank"), name};
}

TEST(Workers, OfOneNodeReduceTogether) {
  WorkerCluster cluster({.command = play("sum"), .per_node = 3});
  ASSERT_TRUE(cluster.wait_for_all(seconds(30)));
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(cluster.exit_code(rank), 0) << cluster.output(rank);
    EXPECT_THAT(cluster.output(rank), HasSubstr("sum 3 on node 0\n"));
  }
}

TEST(Workers, OfTwoNodesReduceTogether) {
  WorkerCluster cluster({.command = play("sum"), .nodes = 2, .per_node = 2});
  ASSERT_TRUE(cluster.wait_for_all(seconds(30)));
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(cluster.exit_code(rank), 0) << cluster.output(rank);
    EXPECT_THAT(cluster.output(rank), HasSubstr("sum 6 on node " + std::to_string(rank / 2)));
  }
}

// Kills one of three workers at a step that a seed chooses, and checks the errors of the
// others.
void kill_one(const std::string& name, std::uint64_t seed) {
  SCOPED_TRACE(name + ", " + testing_support::seed_text(seed));
  Rng rng(seed);
  const int victim = static_cast<int>(rng.below(3));
  const std::size_t steps = rng.below(200);
  WorkerCluster cluster({.command = play(name), .per_node = 3});
  ASSERT_TRUE(eventually([&] {
    return cluster.output(victim).size() >= std::string("ready\n").size() + 2 * steps;
  })) << cluster.output(victim);
  const TimePoint killed = BootClock::now();
  cluster.signal(victim, SIGKILL);
  ASSERT_TRUE(cluster.wait_for_all(seconds(30)));
  EXPECT_EQ(cluster.exit_code(victim), 128 + SIGKILL);
  for (int rank = 0; rank < 3; ++rank) {
    if (rank == victim) continue;
    EXPECT_EQ(cluster.exit_code(rank), kFailedAsExpected) << cluster.output(rank);
    const WorkerFailure failure = failure_in(cluster.output(rank));
    EXPECT_EQ(failure.kind, DistError::Kind::kPeerLost) << failure.what;
    EXPECT_EQ(failure.peer, victim) << failure.what;
    EXPECT_LT(failure.time - killed, seconds(1)) << failure.what;
  }
}

TEST(Workers, AKilledOneIsNamedByTheOthersWithinASecond) {
  const std::uint64_t first = testing_support::test_seed(1);
  for (std::uint64_t seed = first; seed < first + 2; ++seed) {
    for (const std::string name : {"small", "large", "async", "monitored_barriers"})
      kill_one(name, seed);
  }
}

TEST(Workers, AStoppedOneIsNamedByAMonitoredBarrierWhenItsTimeIsUp) {
  constexpr int kVictim = 1;
  std::vector<std::string> command = play("monitored_barriers");
  command.insert(command.end(), {"env://", "2"});  // a timeout of 2 s
  WorkerCluster cluster({.command = command, .per_node = 3});
  ASSERT_TRUE(eventually([&] { return cluster.output(kVictim).size() > 20; }));
  const TimePoint stopped = BootClock::now();
  cluster.signal(kVictim, SIGSTOP);
  for (const int rank : {0, 2}) {
    ASSERT_TRUE(
        eventually([&] { return cluster.output(rank).find("failed ") != std::string::npos; }));
    const WorkerFailure failure = failure_in(cluster.output(rank));
    EXPECT_EQ(failure.kind, DistError::Kind::kTimeout) << failure.what;
    EXPECT_EQ(failure.peer, kVictim) << failure.what;
    EXPECT_THAT(failure.what, HasSubstr("rank 1 did not arrive; rank 1 is stopped"));
    EXPECT_LT(failure.time - stopped, seconds(3)) << failure.what;
  }
  cluster.signal(kVictim, SIGKILL);
  EXPECT_TRUE(cluster.wait_for_all(seconds(30)));
}

TEST(Workers, EndInPeaceWithWorksThatNobodyWaitsFor) {
  WorkerCluster cluster({.command = play("leave_in_flight"), .per_node = 2});
  ASSERT_TRUE(cluster.wait_for_all(seconds(30)));
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(cluster.exit_code(rank), 0) << cluster.output(rank);
  }
}

TEST(Workers, OneThatEndsEarlyIsNamedByThoseWhoStillWait) {
  WorkerCluster cluster({.command = play("leave_early"), .per_node = 3});
  ASSERT_TRUE(cluster.wait_for_all(seconds(30)));
  EXPECT_EQ(cluster.exit_code(0), 0) << cluster.output(0);
  for (int rank = 1; rank < 3; ++rank) {
    EXPECT_EQ(cluster.exit_code(rank), kFailedAsExpected) << cluster.output(rank);
    const WorkerFailure failure = failure_in(cluster.output(rank));
    EXPECT_EQ(failure.kind, DistError::Kind::kPeerLost) << failure.what;
    EXPECT_EQ(failure.peer, 0) << failure.what;
  }
}

TEST(Workers, OneThatDiesInsteadOfFormingAGroupIsNamedLongBeforeTheDeadline) {
  WorkerCluster cluster({.command = play("form_with_the_dead"), .per_node = 3});
  ASSERT_TRUE(eventually([&] { return cluster.output(1).find("gone") != std::string::npos; }));
  const TimePoint killed = BootClock::now();
  ASSERT_TRUE(cluster.wait_for_all(seconds(30)));
  for (const int rank : {0, 2}) {
    EXPECT_EQ(cluster.exit_code(rank), kFailedAsExpected) << cluster.output(rank);
    const WorkerFailure failure = failure_in(cluster.output(rank));
    EXPECT_EQ(failure.kind, DistError::Kind::kPeerLost) << failure.what;
    EXPECT_EQ(failure.peer, 1) << failure.what;
    EXPECT_THAT(failure.what, HasSubstr("form group 0,1,2"));
    EXPECT_LT(failure.time - killed, seconds(2)) << failure.what;  // the timeout is 30 s
  }
}

TEST(Workers, AFailureThatNobodyCatchesIsSaidByTheRuntime) {
  WorkerCluster cluster({.command = play("fail_uncaught"), .per_node = 2});
  ASSERT_TRUE(cluster.wait_for_all(seconds(30)));
  EXPECT_EQ(cluster.exit_code(0), 128 + SIGABRT);
  EXPECT_THAT(cluster.output(0), HasSubstr("broadcast: root 9 is not a rank of this group"));
}

}  // namespace
}  // namespace ddprun
