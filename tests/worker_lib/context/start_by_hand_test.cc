// Tests ranks that a user starts by hand: as processes, without a launcher and without a
// running store. What each rank does is in worker_main.cc. The details of the bootstrap are in
// tests/worker_lib/store/world_store_test.cc.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <sstream>

#include "base/host_port.h"
#include "rendezvous/net/listen.h"
#include "tests/support/child_process.h"
#include "tests/support/eventually.h"
#include "tests/support/held_port.h"
#include "tests/support/program.h"
#include "tests/support/read_file.h"
#include "tests/support/running_ddp_store.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/test_mark.h"
#include "tests/support/whole.h"
#include "tests/support/worker_failure.h"

namespace ddprun {
namespace {

using std::chrono::seconds;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing_support::Arguments;
using testing_support::ChildProcess;
using testing_support::eventually;
using testing_support::failure_in;
using testing_support::HeldPort;
using testing_support::is_whole;
using testing_support::joined;
using testing_support::kFailedAsExpected;
using testing_support::program;
using testing_support::RunningDdpStore;
using testing_support::WorkerFailure;

using Variables = std::vector<std::pair<std::string, std::string>>;
using Process = std::unique_ptr<ChildProcess>;

enum class Method { kEnv, kTcp, kFile };

class StartByHand : public testing::Test {
 protected:
  void TearDown() override {
    EXPECT_TRUE(eventually([&] { return mark_.processes().empty(); }));
    EXPECT_TRUE(testing_support::listing(directory_.path()).empty());
    EXPECT_TRUE(listen_tcp(HostPort{"127.0.0.1", port_.port()})) << "another program has the port";
  }

  // Starts a rank that runs `play`. timeout_s: of the bootstrap, and of each collective.
  Process start(Method method, const std::string& play, int rank, int size, int timeout_s = 30) {
    ChildProcess::Options options;
    options.variables = {mark_.variable(), {"OMP_NUM_THREADS", "1"}};
    options.variables.insert(options.variables.end(), variables_.begin(), variables_.end());
    const std::string place =
        "?rank=" + std::to_string(rank) + "&world_size=" + std::to_string(size);
    std::string url;
    if (method == Method::kTcp) url = "tcp://" + port_.endpoint() + place;
    if (method == Method::kFile) url = "file://" + directory_ / "init" + place;
    if (method == Method::kEnv) {
      url = "env://";
      const Variables place_variables{{"RANK", std::to_string(rank)},
                                      {"WORLD_SIZE", std::to_string(size)},
                                      {"MASTER_PORT", std::to_string(port_.port())}};
      options.variables.insert(options.variables.end(), place_variables.begin(),
                               place_variables.end());
    }
    return std::make_unique<ChildProcess>(
        joined(wrapper_, {program("worker_test_rank"), play, url, std::to_string(timeout_s)}),
        std::move(options));
  }

  std::vector<Process> start_all(Method method, const std::string& play, int size) {
    std::vector<Process> ranks;
    for (int rank = 0; rank < size; ++rank) ranks.push_back(start(method, play, rank, size));
    return ranks;
  }

  static void expect_sum(std::vector<Process>& ranks) {
    const int size = static_cast<int>(ranks.size());
    for (Process& rank : ranks) {
      EXPECT_EQ(rank->wait(), 0) << rank->out() << rank->err();
      EXPECT_THAT(rank->out(), HasSubstr("sum " + std::to_string(size * (size - 1) / 2)));
      EXPECT_EQ(rank->err(), "");
    }
  }

  static WorkerFailure expect_failure(Process& rank) {
    EXPECT_EQ(rank->wait(), kFailedAsExpected) << rank->out() << rank->err();
    return failure_in(rank->out());
  }

  // Returns rank 0's error if rank 1 of two runs `play` instead of a sum.
  std::string told_of_rank_1(const std::string& play) {
    std::vector<Process> ranks = start_all(Method::kFile, play, 2);
    const WorkerFailure failure = expect_failure(ranks[0]);
    EXPECT_EQ(failure.kind, DistError::Kind::kTimeout) << failure.what;
    EXPECT_EQ(failure.peer, 1) << failure.what;
    return failure.what;
  }

  const testing_support::TestMark mark_;
  const testing_support::TemporaryDirectory directory_;
  const HeldPort port_;
  Variables variables_;  // variables of all ranks
  Arguments wrapper_;    // the command that wraps each rank
};

class StartByEveryMethod : public StartByHand, public testing::WithParamInterface<Method> {};

TEST_P(StartByEveryMethod, OneTwoAndThreeRanksMeetInAnyOrder) {
  std::vector<std::vector<int>> orders{{0}, {1, 0}, {2, 0, 1}};
  if (is_whole()) orders.insert(orders.end(), {{0, 1}, {0, 1, 2}, {1, 2, 0}});
  for (const std::vector<int>& order : orders) {
    std::vector<Process> ranks(order.size());
    for (const int rank : order) {
      ranks[static_cast<std::size_t>(rank)] =
          start(GetParam(), "sum", rank, static_cast<int>(order.size()));
    }
    expect_sum(ranks);
  }
}

// The next job begins at the moment in which the last one has ended, or has been killed.
TEST_P(StartByEveryMethod, TheSamePlaceServesAgainAtOnce) {
  for (int round = 0; round < (is_whole() ? 3 : 1); ++round) {
    std::vector<Process> ranks = start_all(GetParam(), "small", 2);
    for (Process& rank : ranks) ASSERT_TRUE(rank->wait_for_out("ready\n.\n")) << rank->err();
    for (Process& rank : ranks) rank->signal(SIGKILL);
    std::vector<Process> next = start_all(GetParam(), "sum", 2);
    expect_sum(next);
    for (Process& rank : ranks) EXPECT_EQ(rank->wait(), 128 + SIGKILL);
  }
}

// Rank 0 is killed before the ranks have met: a file stays.
TEST_P(StartByEveryMethod, WhatAKilledRank0HasLeftDisturbsNobody) {
  Process lonely = start(GetParam(), "sum", 0, 2);
  const auto is_up = [&] {
    if (GetParam() == Method::kFile) return std::filesystem::exists(directory_ / "init");
    return !listen_tcp(HostPort{"127.0.0.1", port_.port()}).has_value();
  };
  ASSERT_TRUE(eventually(is_up)) << lonely->out() << lonely->err();
  lonely->signal(SIGKILL);
  EXPECT_EQ(lonely->wait(), 128 + SIGKILL);
  std::vector<Process> ranks(2);
  ranks[1] = start(GetParam(), "sum", 1, 2);  // it finds what was left, if anything
  ranks[0] = start(GetParam(), "sum", 0, 2);
  expect_sum(ranks);
}

TEST_P(StartByEveryMethod, ARankThatDoesNotComeIsNamedByTheOthers) {
  const TimePoint start_time = BootClock::now();
  Process first = start(GetParam(), "sum", 0, 3, 5);
  Process second = start(GetParam(), "sum", 1, 3, 20);
  for (Process* rank : {&first, &second}) {
    const WorkerFailure failure = expect_failure(*rank);
    EXPECT_EQ(failure.kind, DistError::Kind::kTimeout) << failure.what;
    EXPECT_THAT(failure.what, HasSubstr("rank 2 did not come"));
  }
  EXPECT_LT(BootClock::now() - start_time, seconds(15)) << "the second learns it from the first";
}

TEST_P(StartByEveryMethod, WithoutRank0TheOthersNameIt) {
  Process lonely = start(GetParam(), "sum", 1, 2, 1);
  const WorkerFailure failure = expect_failure(lonely);
  EXPECT_EQ(failure.peer, 0) << failure.what;
  EXPECT_THAT(failure.what, AllOf(HasSubstr("ddprun::init of rank 1 of 2"), HasSubstr("rank 0")));
}

TEST_P(StartByEveryMethod, AKilledRankIsNamedByTheOthers) {
  for (const int victim : {0, 2}) {
    std::vector<Process> ranks = start_all(GetParam(), "small", 3);
    for (Process& rank : ranks) ASSERT_TRUE(rank->wait_for_out("ready\n.\n")) << rank->err();
    ranks[static_cast<std::size_t>(victim)]->signal(SIGKILL);
    for (int rank = 0; rank < 3; ++rank) {
      if (rank == victim) continue;
      const WorkerFailure failure = expect_failure(ranks[static_cast<std::size_t>(rank)]);
      EXPECT_EQ(failure.kind, DistError::Kind::kPeerLost) << failure.what;
      EXPECT_EQ(failure.peer, victim) << failure.what;
    }
  }
}

TEST_P(StartByEveryMethod, Rank0ThatLeavesFirstEndsWhenTheOthersHave) {
  std::vector<Process> ranks = start_all(GetParam(), "leave_early", 3);
  EXPECT_EQ(ranks[0]->wait(), 0) << ranks[0]->out() << ranks[0]->err();
  for (int rank = 1; rank < 3; ++rank) {
    const WorkerFailure failure = expect_failure(ranks[static_cast<std::size_t>(rank)]);
    EXPECT_EQ(failure.kind, DistError::Kind::kPeerLost) << failure.what;
    EXPECT_EQ(failure.peer, 0) << failure.what;
  }
}

std::string name_of(const testing::TestParamInfo<Method>& info) {
  if (info.param == Method::kEnv) return "Env";
  return info.param == Method::kTcp ? "Tcp" : "File";
}
INSTANTIATE_TEST_SUITE_P(Methods, StartByEveryMethod,
                         testing::Values(Method::kEnv, Method::kTcp, Method::kFile), name_of);

// Returns the inodes of the process's memory mappings that have this name.
std::vector<std::string> memory_of(const ChildProcess& process, const std::string& name) {
  std::istringstream maps(
      testing_support::read_file("/proc/" + std::to_string(process.pid()) + "/maps"));
  std::vector<std::string> inodes;
  for (std::string line; std::getline(maps, line);) {
    if (!line.ends_with(name)) continue;
    std::istringstream fields(line);
    std::string range, rights, offset, device, inode;
    fields >> range >> rights >> offset >> device >> inode;
    inodes.push_back(inode);
  }
  return inodes;
}

TEST_F(StartByHand, RanksOfOneHostShareMemory) {
  std::vector<Process> ranks = start_all(Method::kFile, "small", 2);
  for (Process& rank : ranks) ASSERT_TRUE(rank->wait_for_out("ready\n.\n")) << rank->err();
  const std::string segment = "/memfd:ddprun (deleted)";
  EXPECT_FALSE(memory_of(*ranks[0], segment).empty());
  EXPECT_EQ(memory_of(*ranks[0], segment), memory_of(*ranks[1], segment));
}

TEST_F(StartByHand, TheFileIsGoneAsSoonAsAllHaveMet) {
  std::vector<Process> ranks = start_all(Method::kFile, "small", 2);
  for (Process& rank : ranks) ASSERT_TRUE(rank->wait_for_out("ready\n.\n")) << rank->err();
  EXPECT_TRUE(testing_support::listing(directory_.path()).empty());
}

TEST_F(StartByHand, ADeadlineSaysWhatTheRankThatDidNotComeDoesInstead) {
  EXPECT_THAT(told_of_rank_1("stay_away"),
              AllOf(HasSubstr("all_reduce #2 of 4 f32 (sum): rank 1 did not arrive; rank 0 is "
                              "there. rank 1: it has done step 1; it has been in no call for "),
                    HasSubstr("; the last was all_reduce of 16 bytes (sum of float32)")));
  EXPECT_THAT(told_of_rank_1("stay_in_recv"),
              HasSubstr("rank 1 did not arrive; rank 0 is there. rank 1: it has done step 1; it "
                        "has been in recv of 16 bytes of float32 from rank 0 for "));
  EXPECT_THAT(told_of_rank_1("stay_stopped"),
              AllOf(HasSubstr("rank 1 is stopped (by a signal or a debugger)"),
                    HasSubstr(". rank 1: it has done step 1; it has been in no call for ")));
}

// Each rank is process 1 and sees no other rank, as in containers that share the host's
// network.
TEST_F(StartByHand, ThatIsSaidAlsoOfARankInAnotherPidNamespace) {
  wrapper_ = {"unshare", "--pid", "--fork", "--kill-child", "--mount-proc"};
  if (geteuid() != 0) wrapper_.insert(wrapper_.end(), {"--user", "--map-root-user"});
  if (ChildProcess(joined(wrapper_, {"true"})).wait() != 0) {
    GTEST_SKIP() << "no PID namespace can be made here";
  }
  EXPECT_THAT(
      told_of_rank_1("stay_in_recv"),
      HasSubstr(". rank 1: it has done step 1; it has been in recv of 16 bytes of float32"));
}

TEST_F(StartByHand, RanksThatDisagreeAreToldFromWhereTheyCalledWhereThatIsTraced) {
  for (const char* trace : {"0", "1"}) {
    variables_ = {{"DDPRUN_TRACE", trace}};
    for (Process& rank : start_all(Method::kFile, "disagree", 3)) {
      const WorkerFailure failure = expect_failure(rank);
      EXPECT_EQ(failure.kind, DistError::Kind::kInvalidArgument) << failure.what;
      EXPECT_THAT(failure.what, HasSubstr("ranks 0 and 2 called all_reduce #1 of 4 f32 (sum); rank "
                                          "1 called broadcast #1 of 4 f32 from rank 0"));
      const auto from = HasSubstr(", called from ");
      if (*trace == '0') {
        EXPECT_THAT(failure.what, Not(from));
      } else {
        EXPECT_THAT(
            failure.what,
            AllOf(HasSubstr(". rank 1: it has been in broadcast of 16 bytes of float32"), from));
      }
    }
  }
}

TEST_F(StartByHand, ASecondJobAtThePortIsToldSoAndTheFirstGoesOn) {
  std::vector<Process> first = start_all(Method::kEnv, "small", 2);
  for (Process& rank : first) ASSERT_TRUE(rank->wait_for_out("ready\n.\n")) << rank->err();
  Process second_0 = start(Method::kEnv, "sum", 0, 2, 2);
  Process second_1 = start(Method::kEnv, "sum", 1, 2, 2);
  EXPECT_THAT(expect_failure(second_0).what,
              AllOf(HasSubstr("a rank 0 of run 'none' is there already"),
                    HasSubstr("MASTER_ADDR:MASTER_PORT " + port_.endpoint())));
  EXPECT_THAT(expect_failure(second_1).what, HasSubstr("a rank 1 is already in this world"));
  const std::size_t steps = first[0]->out().size();
  EXPECT_TRUE(eventually([&] { return first[0]->out().size() > steps + 20; }));
}

// This was the advice before rank 0 could host the store. It still works.
TEST_F(StartByHand, ADdpStoreThatStandsByIsUsed) {
  const RunningDdpStore store;
  for (int run = 0; run < 2; ++run) {
    std::vector<Process> ranks;
    for (int rank = 0; rank < 2; ++rank) {
      ChildProcess::Options options;
      options.variables = {mark_.variable(),
                           {"RANK", std::to_string(rank)},
                           {"WORLD_SIZE", "2"},
                           {"MASTER_PORT", std::to_string(store.port)}};
      ranks.push_back(std::make_unique<ChildProcess>(
          Arguments{program("worker_test_rank"), "sum", "env://", "30"}, std::move(options)));
    }
    expect_sum(ranks);
  }
}

TEST_F(StartByHand, UnderDdprunRank0HostsTheStoreWhereItIsTold) {
  ChildProcess job({program("ddprun"), "--standalone", "--nproc-per-node=2", "--worker-store=rank0",
                    "--max-restarts=1", program("worker_test_rank"), "die_once"},
                   {.variables = {mark_.variable()}});
  EXPECT_EQ(job.wait(seconds(60)), 0) << job.out() << job.err();
  EXPECT_THAT(job.out(), HasSubstr("sum 1 on node 0"));
}

}  // namespace
}  // namespace ddprun
