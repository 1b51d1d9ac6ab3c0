// Tests spawn() with real processes. main.cc has the tests that concern the program itself
// (its streams, its end, its threads). Ranks cannot report failures to GoogleTest. They throw,
// or write into memory that they share with the test.
#include "ddprun/spawn.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <ddprun/context.h>
#include <array>
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <stdexcept>
#include <thread>

#include "base/pipe.h"
#include "base/process_stat.h"
#include "base/small_file.h"
#include "tests/support/child_process.h"
#include "tests/support/eventually.h"
#include "tests/support/expect_dist_error.h"
#include "tests/support/program.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/test_mark.h"

namespace ddprun {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;
using testing_support::ChildProcess;
using testing_support::eventually;
using testing_support::kPatience;
using testing_support::program;
using testing_support::TemporaryDirectory;
using testing_support::TestMark;

using Kind = DistError::Kind;

// Numbers that ranks write and the test reads.
class SharedNumbers {
 public:
  SharedNumbers()
      : numbers_(static_cast<Numbers*>(mmap(nullptr, sizeof(Numbers), PROT_READ | PROT_WRITE,
                                            MAP_SHARED | MAP_ANONYMOUS, -1, 0))) {}
  ~SharedNumbers() { munmap(numbers_, sizeof(Numbers)); }
  SharedNumbers(const SharedNumbers&) = delete;
  SharedNumbers& operator=(const SharedNumbers&) = delete;

  std::atomic<int>& operator[](int rank) const {
    return (*numbers_)[static_cast<std::size_t>(rank)];
  }

 private:
  using Numbers = std::array<std::atomic<int>, 16>;
  Numbers* numbers_;
};

[[noreturn]] void stay() {
  for (;;) pause();
}

// Returns whether the process is gone, also as a zombie.
bool is_gone(int pid) { return ::kill(pid, 0) != 0 && errno == ESRCH; }

SpawnError spawn_error_of(const std::function<void(int)>& fn, int ranks,
                          const SpawnOptions& options = {}) {
  try {
    spawn(fn, ranks, options);
  } catch (const SpawnError& error) {
    return error;
  }
  ADD_FAILURE() << "spawn threw nothing";
  return {"", {}};
}

// --- invalid arguments

TEST(Spawn, RefusesNoFunctionNoRanksAndANegativeGrace) {
  const auto nothing = [](int) {};
  EXPECT_DIST_ERROR(spawn({}, 2), Kind::kInvalidArgument, HasSubstr("fn is empty"));
  for (const int ranks : {0, -3}) {
    EXPECT_DIST_ERROR(spawn(nothing, ranks), Kind::kInvalidArgument,
                      HasSubstr("nprocs " + std::to_string(ranks) + " is less than 1"));
  }
  EXPECT_DIST_ERROR(spawn(nothing, 1, {.grace = seconds(-1)}), Kind::kInvalidArgument,
                    HasSubstr("grace"));
}

TEST(Spawn, RefusesAProcessWithOtherThreadsByTheirNames) {
  const Pipe go = make_pipe().value();
  std::thread other([&] {
    char byte = 0;
    [[maybe_unused]] const ssize_t count = read(go.read.get(), &byte, 1);
  });
  pthread_setname_np(other.native_handle(), "loader");
  EXPECT_DIST_ERROR(spawn([](int) {}, 2), Kind::kUnsupported,
                    AllOf(StartsWith("spawn: fork the ranks: this process has 1 more thread "
                                     "(loader)"),
                          HasSubstr("before anything starts threads")));
  ASSERT_EQ(write(go.write.get(), ".", 1), 1);
  other.join();
  spawn([](int) {}, 2);  // the kernel may still show a thread that has just been joined
}

TEST(SpawnProgram, RefusesAfterTensorOperationsHaveStartedThreads) {
  ChildProcess job({program("spawn_test_program"), "computed"});
  EXPECT_EQ(job.wait(), 0) << job.err();
  EXPECT_THAT(job.out(), AllOf(HasSubstr("1 more thread ("), HasSubstr("tensor operations")));
}

TEST(Spawn, WhatCannotBeMadeIsSaid) {
  // A limit of this process that leaves no room for another descriptor.
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit tight{.rlim_cur = static_cast<rlim_t>(entries_of("/proc/self/fd").size()),
                     .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &tight), 0);
  const DistError error = testing_support::dist_error_of([] { spawn([](int) {}, 2); });
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(error.kind(), Kind::kSystem);
  EXPECT_THAT(error.what(), AllOf(StartsWith("spawn: "), HasSubstr("Too many open files")));
}

// --- failures

TEST(Spawn, AnExceptionComesBackWithItsRankAndWords) {
  const SpawnError error = spawn_error_of(
      [](int rank) {
        if (rank == 1) throw std::runtime_error("no such file\nand a stack of LibTorch's");
        stay();
      },
      3);
  EXPECT_STREQ(error.what(), "spawn: rank 1 of 3 threw std::runtime_error: no such file");
  EXPECT_EQ(error.message(), "no such file\nand a stack of LibTorch's");
  EXPECT_EQ(error.rank(), 1);
  EXPECT_EQ(error.kind(), Kind::kSystem);
  EXPECT_EQ(error.peer_rank(), -1);
  EXPECT_EQ(error.exit_code(), std::nullopt);
  EXPECT_EQ(error.signal(), std::nullopt);
  EXPECT_TRUE(is_gone(error.pid()));
}

TEST(Spawn, ADistErrorKeepsItsKindAndPeer) {
  const SpawnError error = spawn_error_of(
      [](int) { throw DistError(Kind::kTimeout, "all_reduce: rank 5 did not come", 5); }, 1);
  EXPECT_EQ(error.kind(), Kind::kTimeout);
  EXPECT_EQ(error.peer_rank(), 5);
  EXPECT_EQ(error.rank(), 0);
}

TEST(Spawn, WhatIsNoExceptionIsNamedByItsType) {
  const SpawnError error = spawn_error_of([](int) { throw 42; }, 1);
  EXPECT_STREQ(error.what(), "spawn: rank 0 of 1 threw int");
  EXPECT_EQ(error.message(), "");
}

TEST(Spawn, AVeryLongMessageIsCutAndNotLost) {
  const SpawnError error =
      spawn_error_of([](int) { throw std::runtime_error(std::string(1 << 20, 'x')); }, 1);
  EXPECT_EQ(error.message(), std::string(8000, 'x'));
}

TEST(Spawn, DeathByASignalIsNamed) {
  for (const auto& [signal, name] : {std::pair(SIGSEGV, "SIGSEGV"), {SIGKILL, "SIGKILL"}}) {
    const SpawnError error = spawn_error_of(
        [signal = signal](int rank) {
          if (rank == 0) stay();
          const rlimit no_core{};
          setrlimit(RLIMIT_CORE, &no_core);
          std::signal(signal, SIG_DFL);  // sanitizers install their own handlers
          raise(signal);
        },
        2);
    EXPECT_EQ(error.what(), std::string("spawn: rank 1 of 2 was killed by ") + name);
    EXPECT_EQ(error.signal(), signal);
    EXPECT_EQ(error.exit_code(), std::nullopt);
    EXPECT_EQ(error.kind(), Kind::kPeerLost);
    EXPECT_EQ(error.peer_rank(), 1);
  }
}

TEST(Spawn, AnExitCodeOtherThanZeroIsAFailureAndZeroIsNone) {
  const SpawnError error = spawn_error_of([](int rank) { _exit(rank == 0 ? 3 : 0); }, 2);
  EXPECT_STREQ(error.what(), "spawn: rank 0 of 2 ended with exit code 3");
  EXPECT_EQ(error.exit_code(), 3);
  EXPECT_EQ(error.signal(), std::nullopt);
  spawn([](int) { _exit(0); }, 2);
}

TEST(Spawn, TheOthersAreToldToEndAndThoseThatDoNotAreKilled) {
  const SharedNumbers told;
  const SpawnError error = spawn_error_of(
      [&](int rank) {
        sigset_t term;
        sigemptyset(&term);
        sigaddset(&term, SIGTERM);
        sigprocmask(SIG_BLOCK, &term, nullptr);
        told[rank] = 1;
        if (rank == 0) {
          eventually([&] { return told[1] != 0 && told[2] != 0; });
          throw std::runtime_error("first");
        }
        int signal = 0;
        sigwait(&term, &signal);
        told[rank] = signal;
        if (rank == 1) throw std::runtime_error("because it was told");
        stay();  // rank 2 ignores the request
      },
      3, {.grace = seconds(2)});
  EXPECT_THAT(error.what(), HasSubstr("rank 0 of 3 threw std::runtime_error: first"));
  EXPECT_EQ(told[1], SIGTERM);
  EXPECT_EQ(told[2], SIGTERM);
}

// Rank 0 learns of the death through its connection, and often ends first.
TEST(Spawn, TheRankThatDiedIsTheStoryNotTheOneThatLostIt) {
  for (int round = 0; round < 3; ++round) {
    const SpawnError error = spawn_error_of(
        [](int rank) {
          auto ctx = init({.device = torch::kCPU});
          ctx.group().barrier();
          if (rank == 1) raise(SIGKILL);
          ctx.group().barrier();
        },
        2);
    EXPECT_STREQ(error.what(), "spawn: rank 1 of 2 was killed by SIGKILL");
  }
}

// Starts a daemon from a rank. No process of the rank waits for it.
int start_daemon() {
  const Pipe told = make_pipe().value();
  if (fork() == 0) {
    setsid();
    std::signal(SIGTERM, SIG_IGN);
    const pid_t daemon = fork();
    if (daemon == 0) stay();
    _exit(write(told.write.get(), &daemon, sizeof daemon) == sizeof daemon ? 0 : 1);
  }
  pid_t daemon = 0;
  return read(told.read.get(), &daemon, sizeof daemon) == sizeof daemon ? daemon : -1;
}

TEST(Spawn, WhatARankHasStartedIsEndedWithTheRanks) {
  const SharedNumbers daemons;
  spawn([&](int rank) { daemons[rank] = start_daemon(); }, 2);
  for (const int rank : {0, 1}) EXPECT_TRUE(is_gone(daemons[rank])) << daemons[rank];
  spawn_error_of(
      [&](int rank) {
        daemons[rank] = start_daemon();
        throw std::runtime_error("failed");
      },
      1);
  EXPECT_TRUE(is_gone(daemons[0])) << daemons[0];
}

// --- the world of the ranks

TEST(Spawn, InitFormsAWorldOfTheRanksWhichSeeWhatIsCaptured) {
  for (const int ranks : {1, 2, 4}) {
    const SharedNumbers sums;
    const std::vector<int> numbers{1, 10, 100, 1000};
    spawn(
        [&](int rank) {
          auto ctx = init({.device = torch::kCPU});
          if (ctx.rank() != rank || ctx.local_rank() != rank) throw std::runtime_error("rank");
          torch::Tensor sum = torch::tensor(numbers[static_cast<std::size_t>(rank)]);
          ctx.group().all_reduce(sum);
          sums[rank] = sum.item<int>();
        },
        ranks);
    const std::array expected{1, 11, 111, 1111};
    for (int rank = 0; rank < ranks; ++rank) {
      EXPECT_EQ(sums[rank], expected[static_cast<std::size_t>(ranks - 1)]);
    }
  }
}

TEST(Spawn, ADeadlineSaysWhatTheRankThatDidNotComeDoesInstead) {
  const auto rank_1_stays_away = [](int rank) {
    auto ctx = init();
    const torch::Tensor x = torch::ones({4});
    ctx.group().all_reduce(x);
    if (rank == 1) stay();
    ctx.group().all_reduce(x, {.timeout = milliseconds(500)});
  };
  EXPECT_THAT(
      spawn_error_of(rank_1_stays_away, 2).what(),
      HasSubstr("rank 1 did not arrive; rank 0 is there. rank 1: it has been in no call for "));
}

TEST(Spawn, RanksHaveTheirShareOfTheCpusAsThreads) {
  const SharedNumbers threads;
  const int many = static_cast<int>(std::thread::hardware_concurrency()) + 1;
  ASSERT_EQ(std::getenv("OMP_NUM_THREADS"), nullptr);
  const int before = at::get_num_threads();
  spawn([&](int rank) { threads[rank % 16] = at::get_num_threads(); }, many);
  EXPECT_EQ(threads[0], 1);
  setenv("OMP_NUM_THREADS", "3", 1);
  spawn([&](int rank) { threads[rank] = at::get_num_threads(); }, 2);
  unsetenv("OMP_NUM_THREADS");
  EXPECT_EQ(threads[1], before);  // the value of this process, which has read the variable itself
  EXPECT_EQ(at::get_num_threads(), before);
}

TEST(Spawn, ALaunchersVariablesAreReplacedInTheRanksAlone) {
  setenv("RANK", "7", 1);
  setenv("DDPRUN_WORKER_PAGE", "64@/nowhere", 1);
  const SharedNumbers found;
  spawn(
      [&](int rank) {
        found[rank] = std::atoi(std::getenv("RANK")) + (std::getenv("DDPRUN_WORKER_PAGE") ? 99 : 0);
      },
      2);
  EXPECT_EQ(found[1], 1);
  EXPECT_STREQ(std::getenv("RANK"), "7");
  unsetenv("RANK");
  unsetenv("DDPRUN_WORKER_PAGE");
}

TEST(Spawn, ARankMaySpawnRanksOfItsOwn) {
  const SharedNumbers sums;
  const SpawnError error = spawn_error_of(
      [&](int outer) {
        spawn(
            [&](int inner) {
              auto ctx = init({.device = torch::kCPU});
              torch::Tensor sum = torch::tensor(inner + 1);
              ctx.group().all_reduce(sum);
              sums[2 * outer + inner] = sum.item<int>();
            },
            2);
        if (outer == 1) spawn([](int) { throw std::runtime_error("deep"); }, 1);
      },
      2);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(sums[i], 3);
  EXPECT_THAT(error.what(),
              HasSubstr("rank 1 of 2 threw ddprun::SpawnError: spawn: rank 0 of 1 threw "
                        "std::runtime_error: deep"));
}

// --- contexts

TEST(SpawnContext, JoinWaitsAsLongAsItIsToldAndSaysTheSameAgain) {
  const SharedNumbers go;
  SpawnContext ranks = spawn_context([&](int) { eventually([&] { return go[0] != 0; }); }, 2);
  EXPECT_FALSE(ranks.join(milliseconds(20)));
  EXPECT_FALSE(ranks.join(seconds(0)));
  for (const int pid : ranks.pids()) EXPECT_FALSE(is_gone(pid));
  go[0] = 1;
  EXPECT_TRUE(ranks.join(kPatience));
  for (const int pid : ranks.pids()) EXPECT_TRUE(is_gone(pid));
  EXPECT_TRUE(ranks.join());
}

TEST(SpawnContext, AFailureIsToldAsOftenAsItIsAskedFor) {
  SpawnContext ranks = spawn_context([](int) { throw std::runtime_error("gone"); }, 2);
  for (int i = 0; i < 2; ++i) {
    EXPECT_DIST_ERROR(ranks.join(kPatience), Kind::kSystem, HasSubstr("gone"));
  }
}

TEST(SpawnContext, KillEndsAllAndWhatTheyHaveStarted) {
  const SharedNumbers daemons;
  SpawnContext ranks = spawn_context(
      [&](int rank) {
        std::signal(SIGTERM, SIG_IGN);
        daemons[rank] = start_daemon();
        stay();
      },
      2);
  ASSERT_TRUE(eventually([&] { return daemons[0] != 0 && daemons[1] != 0; }));
  ranks.kill();
  for (const int rank : {0, 1}) {
    EXPECT_TRUE(is_gone(daemons[rank]));
    EXPECT_TRUE(is_gone(ranks.pids()[static_cast<std::size_t>(rank)]));
  }
  EXPECT_DIST_ERROR(ranks.join(), Kind::kStopped, HasSubstr("the ranks were asked to end"));
  ranks.kill();  // nothing is left to do
}

TEST(SpawnContext, ItsEndEndsRanksThatStillRunAndSaysSo) {
  std::vector<int> pids;
  testing::internal::CaptureStderr();
  {
    const SpawnContext ranks = spawn_context([](int) { stay(); }, 2);
    pids = ranks.pids();
  }
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("ended before its ranks"));
  for (const int pid : pids) EXPECT_TRUE(is_gone(pid));
}

TEST(SpawnContext, AFailureThatNobodyHasAskedForIsSaidAtItsEnd) {
  testing::internal::CaptureStderr();
  {
    const SpawnContext ranks = spawn_context([](int) { throw std::runtime_error("unseen"); }, 1);
    ASSERT_TRUE(eventually([&] { return is_gone(ranks.pids()[0]); }));
  }
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              HasSubstr("spawn: rank 0 of 1 threw std::runtime_error: unseen"));
}

TEST(SpawnContext, SeveralRunBesideEachOther) {
  const SharedNumbers go;
  const auto wait = [&](int) { eventually([&] { return go[0] != 0; }); };
  SpawnContext first = spawn_context(wait, 2);
  SpawnContext second = spawn_context(wait, 1);
  second.kill();
  EXPECT_FALSE(first.join(seconds(0)));
  go[0] = 1;
  EXPECT_TRUE(first.join(kPatience));
  EXPECT_THROW(second.join(), DistError);
  second = spawn_context([](int) {}, 1);
  EXPECT_TRUE(second.join(kPatience));
}

TEST(SpawnContext, ItsRanksDoNotOutliveTheProcessThatWatchesOverThem) {
  SpawnContext ranks = spawn_context([](int) { stay(); }, 2);
  const std::vector<int> pids = ranks.pids();
  const auto rank = process_stat(pids[0]);
  ASSERT_TRUE(rank);
  ASSERT_NE(rank->parent, getpid());
  ASSERT_EQ(::kill(rank->parent, SIGKILL), 0);
  EXPECT_DIST_ERROR(ranks.join(kPatience), Kind::kSystem,
                    AllOf(HasSubstr("the monitor of the ranks"), HasSubstr("killed by SIGKILL")));
  for (const int pid : pids) EXPECT_TRUE(eventually([&] { return is_gone(pid); }));
}

TEST(SpawnContext, LeavesNoDescriptorsAndNoChildren) {
  const std::size_t before = entries_of("/proc/self/fd").size();
  for (int round = 0; round < 3; ++round) {
    spawn([](int) {}, 3);
    spawn_error_of([](int) { throw 1; }, 2);
  }
  EXPECT_EQ(entries_of("/proc/self/fd").size(), before);
  EXPECT_EQ(testing_support::first_child_of(getpid()), -1);
}

// --- the program

int times(const std::string& text, const std::string& words) {
  int found = 0;
  for (std::size_t at = 0; (at = text.find(words, at)) != text.npos; at += words.size()) ++found;
  return found;
}

TEST(SpawnProgram, WhatIsBufferedIsWrittenOnceAndStaticsEndOnce) {
  ChildProcess job({program("spawn_test_program"), "streams"});
  EXPECT_EQ(job.wait(), 0) << job.err();
  const std::string out = job.out();
  for (const char* once : {"buffered by printf\n", "buffered by cout\n", "rank 0 by printf\n",
                           "rank 1 by printf\n", "rank 0 by cout, input ends: 1\n",
                           "rank 1 by cout, input ends: 1\n", "atexit\n", "static destroyed\n"}) {
    EXPECT_EQ(times(out, once), 1) << once << "in:\n" << out;
  }
}

TEST(SpawnProgram, WorksWhereChildrensEndsAreIgnored) {
  ChildProcess job({program("spawn_test_program"), "no-children"});
  EXPECT_EQ(job.wait(), 0) << job.err();
  EXPECT_EQ(job.out(), "sum 3\nsum 3\n");
}

TEST(SpawnProgram, RunsUnderDdprun) {
  const TemporaryDirectory directory;
  ChildProcess::Options options;
  options.variables = {{"TMPDIR", directory.path()}};  // tests of commands do not see the job
  ChildProcess job({program("ddprun"), "--standalone", "--nproc-per-node=2",
                    program("spawn_test_program"), "sum"},
                   options);
  EXPECT_EQ(job.wait(), 0) << job.err();
  EXPECT_EQ(times(job.out(), "sum 3\n"), 4) << job.out();
}

// Ends the program in every way, and checks that no process is left.
class EndOfTheProgram : public testing::Test {
 protected:
  void TearDown() override {
    EXPECT_TRUE(eventually([&] { return mark_.processes().empty(); }));
  }

  ChildProcess::Options options() const {
    ChildProcess::Options options;
    options.variables = {mark_.variable()};
    options.own_session = true;
    return options;
  }
  static bool is_there(ChildProcess& job) {
    return job.wait_for_out("rank 0 is there") && job.wait_for_out("rank 1 is there");
  }

  const TestMark mark_;
};

TEST_F(EndOfTheProgram, ByKillLeavesNothingBehind) {
  ChildProcess job({program("spawn_test_program"), "stay"}, options());
  ASSERT_TRUE(is_there(job)) << job.err();
  EXPECT_EQ(mark_.processes().size(), 6u);  // program, monitor, ranks, and a child of each
  job.signal(SIGKILL);
  EXPECT_EQ(job.wait(), 128 + SIGKILL);
}

TEST_F(EndOfTheProgram, ByInterruptionOfItsProcessGroupLeavesNothingBehind) {
  ChildProcess job({program("spawn_test_program"), "stay"}, options());
  ASSERT_TRUE(is_there(job)) << job.err();
  ASSERT_EQ(::kill(-job.pid(), SIGINT), 0);
  EXPECT_EQ(job.wait(), 128 + SIGINT);
}

TEST_F(EndOfTheProgram, WithoutDestructorsLeavesNothingBehind) {
  ChildProcess job({program("spawn_test_program"), "leave"}, options());
  EXPECT_EQ(job.wait(), 7) << job.err();
}

TEST_F(EndOfTheProgram, GivesRanksTimeToSave) {
  ChildProcess job({program("spawn_test_program"), "save"}, options());
  ASSERT_TRUE(is_there(job)) << job.err();
  job.signal(SIGKILL);
  EXPECT_EQ(job.wait(), 128 + SIGKILL);
  EXPECT_TRUE(job.wait_for_out("rank 0 has saved") && job.wait_for_out("rank 1 has saved"))
      << job.out();
}

}  // namespace
}  // namespace ddprun
