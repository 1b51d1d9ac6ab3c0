// Tests early ends of ddprun: signals, a reader that has stopped, kill -9 of its own
// processes, and scarce resources. Nothing may be left.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <optional>
#include <set>

#include "base/rng.h"
#include "tests/integration/launcher/launcher_frame.h"
#include "tests/support/test_seed.h"

namespace ddprun::testing_support {
namespace {

using testing::HasSubstr;
using testing::Not;
using testing::PrintToString;

using std::chrono::milliseconds;
using std::chrono::seconds;

// --- signals

class SignalTest : public LauncherTest, public testing::WithParamInterface<int> {};

TEST_P(SignalTest, IsPassedOnAndEndsEverythingWithinTheGrace) {
  auto job =
      start_shell({"--nproc-per-node=2"},
                  "trap 'echo got INT; exit 0' INT; trap 'echo got TERM; exit 0' TERM; "
                  "trap 'echo got HUP; exit 0' HUP; echo ready; while :; do sleep 0.05; done");
  ASSERT_TRUE(job->wait_for_out("[rank 0] ready") && job->wait_for_out("[rank 1] ready"));
  job->signal(GetParam());
  EXPECT_EQ(job->wait(), 128 + GetParam());
  const std::string name = GetParam() == SIGINT ? "INT" : GetParam() == SIGTERM ? "TERM" : "HUP";
  EXPECT_THAT(job->out(), HasSubstr("[rank 0] got " + name));
  EXPECT_THAT(job->out(), HasSubstr("[rank 1] got " + name));
}
INSTANTIATE_TEST_SUITE_P(All, SignalTest, testing::Values(SIGINT, SIGTERM, SIGHUP));

TEST_F(LauncherTest, ASecondCtrlCEndsStubbornWorkersAtOnce) {
  auto job = start_shell({}, "trap '' INT TERM; echo ready; while :; do sleep 0.05; done");
  ASSERT_TRUE(job->wait_for_out("ready"));
  job->signal(SIGINT);
  ASSERT_TRUE(job->wait_for_err("passing it on"));
  job->signal(SIGINT);
  EXPECT_EQ(job->wait(seconds(5)), 130);
}

// Returns whether a process has taken every signal that was sent to it.
bool has_taken_its_signals(pid_t pid) {
  const std::string status = read_file("/proc/" + std::to_string(pid) + "/status");
  return status.find("ShdPnd:\t0000000000000000") != std::string::npos;
}

TEST_F(LauncherTest, ASigintToTheWholeGroupOfProcessesIsOne) {
  auto job = start_shell({}, "trap '" + std::string(kUntilGo) +
                                 "; echo in peace; exit 0' INT; "
                                 "echo ready; while :; do sleep 0.02; done");
  ASSERT_TRUE(job->wait_for_out("ready"));
  const Tree tree = tree_of(*job);
  for (const pid_t pid : {tree.agent, tree.keeper, tree.guardian}) kill(pid, SIGINT);
  ASSERT_TRUE(job->wait_for_err("passing it on"));
  ASSERT_TRUE(eventually(
      [&] { return has_taken_its_signals(tree.guardian) && has_taken_its_signals(tree.agent); }));
  let_go();
  EXPECT_EQ(job->wait(), 130);
  EXPECT_THAT(job->out(), HasSubstr("in peace")) << job->err();
  EXPECT_THAT(job->err(), Not(HasSubstr("second SIGINT")));
}

// --- a reader of the output that has stopped

// Runs ddprun with its output in a pipe that the test holds and does not read.
class StoppedReader : public LauncherTest {
 protected:
  void start_job(const std::string& script) {
    const std::string fifo = directory_ / "fifo";
    ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
    std::ofstream(directory_ / "script.sh") << script;
    job_ = std::make_unique<ChildProcess>(
        Arguments{
            "sh", "-c",
            "exec '" + program("ddprun") + "' --shutdown-grace=2 sh script.sh > fifo 2> fifo"},
        environment());
    reader_.reset(open(fifo.c_str(), O_RDONLY | O_CLOEXEC));
    ASSERT_TRUE(reader_.valid());
  }

  UniqueFd reader_;
  std::unique_ptr<ChildProcess> job_;
};

TEST_F(StoppedReader, DoesNotKeepAJobThatIsToldToEnd) {
  // After this output of the worker, more than a MiB, the pipe to the reader is full.
  start_job("yes | head -n 750000; touch begun; exec yes");
  ASSERT_TRUE(eventually([&] { return std::filesystem::exists(directory_ / "begun"); }));
  job_->signal(SIGTERM);
  EXPECT_EQ(job_->wait(seconds(10)), 143);
}

TEST_F(StoppedReader, IsWaitedForByAJobThatHasEndedUntilAPersonStopsIt) {
  start_job("yes | head -n 750000; touch done");
  ASSERT_TRUE(eventually([&] { return std::filesystem::exists(directory_ / "done"); }));
  const pid_t agent = tree_of(*job_).agent;
  ASSERT_TRUE(eventually([&] { return first_child_of(agent) < 0; }));
  EXPECT_FALSE(job_->wait(milliseconds(300))) << "what was written is still to be read";
  job_->signal(SIGINT);
  EXPECT_EQ(job_->wait(seconds(10)), 0) << "the job had ended well";
}

TEST_F(LauncherTest, WhatAnEndingWorkerStartsAndLeavesIsToldToEndAsWell) {
  // The shell waits until its child has become `sleep`: a shell could swallow the signal.
  auto job =
      start_shell({},
                  "trap 'sleep 1000 & until grep -q sleep /proc/$!/comm; do :; done; exit 0' TERM; "
                  "echo ready; while :; do sleep 0.01; done");
  ASSERT_TRUE(job->wait_for_out("ready"));
  job->signal(SIGTERM);
  EXPECT_EQ(job->wait(seconds(10)), 143) << "it waited for the grace: " << job->err();
}

TEST_F(LauncherTest, ASignalAtAnyMomentOfTheStartLeavesNothing) {
  const std::uint64_t seed = test_seed(1);
  SCOPED_TRACE(seed_text(seed));
  Rng rng(seed);
  for (int round = 0; round < 20; ++round) {
    auto job = start_shell({"--nproc-per-node=2"}, "sleep 1000 & exec sleep 1000");
    let_pass(up_to(milliseconds(15), rng));
    job->signal(SIGTERM);
    ASSERT_EQ(job->wait(), 143) << "round " << round << job->err();
    ASSERT_TRUE(left_behind().empty()) << "round " << round;
  }
}

// Programs that never wait for their children leave SIGCHLD ignored.
TEST_F(LauncherTest, AnInheritedIgnoreOfSigchldIsNoMatter) {
  ChildProcess job({"python3", "-c",
                    "import os, signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN); os.execv('" +
                        program("ddprun") + "', ['ddprun', 'sh', '-c', 'sleep 0.1; exit 3'])"},
                   environment());
  EXPECT_EQ(job.wait(), 3) << job.err();
}

TEST_F(LauncherTest, UnderNohupAHangupIsIgnored) {
  ChildProcess job({"sh", "-c",
                    "trap '' HUP; exec '" + program("ddprun") + "' sh -c '" +
                        until_go_after("echo ready") + "; echo done'"},
                   environment());
  ASSERT_TRUE(job.wait_for_out("ready"));
  job.signal(SIGHUP);
  let_go();
  EXPECT_EQ(job.wait(), 0) << job.err();
  EXPECT_THAT(job.out(), HasSubstr("done"));
}

// --- kill -9 of ddprun itself

class KillTest : public LauncherTest, public testing::WithParamInterface<std::string> {};

// Workers with a child that has left their session, has lost its parent and ignores every
// signal.
constexpr const char* kClingingWorker =
    "setsid sh -c \"trap '' TERM HUP INT; (setsid sh -c 'echo ready; exec sleep 1000' &); sleep "
    "1000\" & wait";

TEST_P(KillTest, LeavesNoProcess) {
  auto job = start_shell({"--nproc-per-node=2"}, kClingingWorker);
  ASSERT_TRUE(job->wait_for_out("[rank 0] ready") && job->wait_for_out("[rank 1] ready"))
      << job->err();
  const Tree tree = tree_of(*job);
  std::vector<pid_t> victims;
  if (GetParam().find("Guardian") != std::string::npos) victims.push_back(tree.guardian);
  if (GetParam().find("Keeper") != std::string::npos) victims.push_back(tree.keeper);
  if (GetParam().find("Agent") != std::string::npos) victims.push_back(tree.agent);
  if (GetParam().find("Worker") != std::string::npos) victims.push_back(tree.worker);
  for (const pid_t pid : victims) ASSERT_GT(pid, 1);
  for (const pid_t pid : victims) kill(pid, SIGKILL);
  ASSERT_TRUE(job->wait());
  EXPECT_TRUE(eventually([&] { return left_behind().empty(); }, seconds(5)));
}
INSTANTIATE_TEST_SUITE_P(Of, KillTest,
                         testing::Values("Guardian", "Keeper", "Agent", "GuardianAndKeeper",
                                         "GuardianAndAgent", "KeeperAndAgent", "WorkerAndAgent",
                                         "WorkerAndGuardian"),
                         [](const auto& one) { return one.param; });

TEST_F(LauncherTest, AKilledAgentIsNamedAndHasItsOwnExitCode) {
  auto job = start_shell({"--nproc-per-node=2"}, "echo ready; exec sleep 1000");
  ASSERT_TRUE(job->wait_for_out("[rank 0] ready") && job->wait_for_out("[rank 1] ready"));
  kill(tree_of(*job).agent, SIGKILL);
  EXPECT_EQ(job->wait(), 70);
  EXPECT_THAT(job->err(), HasSubstr("the agent (pid "));
}

TEST_F(LauncherTest, KillsOfDdprunAtRandomMomentsLeaveNothing) {
  const std::uint64_t seed = test_seed(1);
  SCOPED_TRACE(seed_text(seed));
  Rng rng(seed);
  for (int round = 0; round < 30; ++round) {
    auto job = start_shell(
        {"--nproc-per-node=2", "--max-restarts=100"},
        "[ $RANK = 1 ] && [ $((DDPRUN_GENERATION % 3)) = 1 ] && exit 1; "
        "setsid sleep 1000 & sleep 0.0$((RANK + 1)); [ $RANK = 0 ] && exit 2; exec sleep 1000");
    let_pass(up_to(milliseconds(120), rng));
    const std::uint64_t one = rng.below(3);
    std::set<std::uint64_t> spared{one};  // it stays to clear up
    if (rng.chance(0.5)) spared.insert((one + 2) % 3);
    if (kill_guards(tree_of(*job), spared) == 0) job->signal(SIGTERM);
    ASSERT_TRUE(job->wait());
    ASSERT_TRUE(eventually([&] { return left_behind().empty(); }, seconds(8)))
        << "round " << round << ": of guardian, keeper and agent number " << PrintToString(spared)
        << " were spared; left:\n"
        << describe_processes(left_behind()) << job->err();
    remove_what_an_early_kill_left();
  }
}

// --- scarce resources

// At every limit, one line names the shortage, the exit code is documented, and nothing is
// left.
class Shortage : public LauncherTest {
 protected:
  // Returns whether the job ran at all.
  bool run(const Arguments& limited, const std::string& shown,
           const std::string& ddprun = program("ddprun")) {
    ChildProcess job(
        joined(limited, {ddprun, "--shutdown-grace=1", "--nproc-per-node=3", "sh", "-c", "exit 0"}),
        environment());
    const std::optional<int> code = job.wait();
    EXPECT_TRUE(code) << shown << " left it hanging\n" << job.err();
    EXPECT_TRUE(eventually([&] { return left_behind().empty(); })) << shown;
    if (code == 0) return true;
    EXPECT_TRUE(code == 64 || code == 69 || code == 70) << shown << ": " << *code << job.err();
    EXPECT_THAT(job.err(), HasSubstr("ddprun: ")) << shown << ": " << *code << job.err();
    for (const char* ugly : {"terminate called", "SIGABRT", "assertion"}) {
      EXPECT_THAT(job.err(), Not(HasSubstr(ugly))) << shown << job.err();
    }
    return false;
  }
};

TEST_F(Shortage, OfDescriptors) {
  int first_enough = 0;
  for (int limit = 6; first_enough == 0; ++limit) {
    ASSERT_LT(limit, 100);
    const std::string shown = "ulimit -n " + std::to_string(limit);
    // Descriptors that ctest leaves open would count towards the limit.
    if (run({"sh", "-c", "exec 3>&- 4>&- 5>&- 6>&- 7>&- 8>&- 9>&-; " + shown + "; exec \"$@\"",
             "sh"},
            shown))
      first_enough = limit;
    if (HasFailure()) return;
  }
  EXPECT_GT(first_enough, 6) << "nothing was ever missing";
}

TEST_F(Shortage, OfProcesses) {
  if (geteuid() != 0) GTEST_SKIP() << "another user's limit needs root";
  std::filesystem::permissions(tmp(), std::filesystem::perms::all);
  std::filesystem::permissions(directory_.path(), std::filesystem::perms::all);
  // A user without other processes, because the limit counts per user.
  const std::string user = std::to_string(500'000'000 + getpid());
  // The build folder may be closed to other users, as /root is.
  const std::string ddprun = directory_ / "ddprun";
  std::filesystem::copy_file(program("ddprun"), ddprun);
  int first_enough = 0;
  for (int limit = 1; first_enough == 0; ++limit) {
    ASSERT_LT(limit, 30);
    const std::string shown = "--nproc=" + std::to_string(limit);
    if (run({"setpriv", "--reuid=" + user, "--clear-groups", "prlimit", shown}, shown, ddprun)) {
      first_enough = limit;
    }
    if (HasFailure()) return;
  }
  EXPECT_GT(first_enough, 1) << "nothing was ever missing";
}

}  // namespace
}  // namespace ddprun::testing_support
