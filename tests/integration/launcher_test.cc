// ddprun as a user meets it: the real binary, real workers, real kills.

#include <dirent.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "base/random_id.h"
#include "base/rng.h"
#include "tests/support/child_process.h"

namespace ddprun {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing_support::ChildProcess;
using testing_support::eventually;
using testing_support::processes_with;

using Arguments = std::vector<std::string>;

const std::string kDdprun = DDPRUN_BIN_DIR "/ddprun";

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

std::string read_file(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// What a failing test says about processes that it did not expect.
std::string describe_processes(const std::vector<pid_t>& pids) {
  std::string text;
  for (const pid_t pid : pids) {
    const std::string proc = "/proc/" + std::to_string(pid);
    std::string command = read_file(proc + "/cmdline");
    std::replace(command.begin(), command.end(), '\0', ' ');
    text += read_file(proc + "/stat").substr(0, 60) + " | " + command + "\n";
  }
  return text;
}

// Every test's processes carry a mark in their environment; none may be left when the test ends.
class LauncherTest : public testing::Test {
 protected:
  void SetUp() override {
    directory_ = std::filesystem::temp_directory_path() / ("launcher_test_" + mark_);
    std::filesystem::create_directories(directory_ / "tmp");
  }
  void TearDown() override {
    EXPECT_TRUE(eventually([&] { return left_behind().empty(); })) << "processes were left behind";
    for (const pid_t pid : left_behind()) kill(pid, SIGKILL);
    EXPECT_TRUE(std::filesystem::is_empty(directory_ / "tmp"))
        << "temporary files were left behind";
    std::filesystem::remove_all(directory_);
  }

  std::vector<pid_t> left_behind() const { return processes_with("DDPRUN_TEST_MARK", mark_); }

  ChildProcess::Options environment(
      std::vector<std::pair<std::string, std::string>> more = {}) const {
    ChildProcess::Options options;
    options.variables = {{"DDPRUN_TEST_MARK", mark_}, {"TMPDIR", directory_ / "tmp"}};
    options.variables.insert(options.variables.end(), more.begin(), more.end());
    options.directory = directory_;
    options.own_session = true;
    return options;
  }
  std::unique_ptr<ChildProcess> start(
      Arguments arguments, std::vector<std::pair<std::string, std::string>> more = {}) const {
    arguments.insert(arguments.begin(), kDdprun);
    return std::make_unique<ChildProcess>(arguments, environment(std::move(more)));
  }
  // Workers that run a line of shell.
  std::unique_ptr<ChildProcess> start_shell(Arguments options, const std::string& script) const {
    options.insert(options.end(), {"sh", "-c", script});
    return start(std::move(options));
  }

  const std::string mark_ = random_hex(8);
  std::filesystem::path directory_;
};

// --- output

TEST_F(LauncherTest, PassesLinesOnWithTheRankInFront) {
  auto job = start_shell({"--nproc-per-node=2"}, "echo out $RANK; echo err $RANK >&2");
  ASSERT_EQ(job->wait(), 0);
  std::vector<std::string> out = lines_of(job->out());
  std::sort(out.begin(), out.end());
  EXPECT_EQ(out, (Arguments{"[rank 0] out 0", "[rank 1] out 1"}));
  std::vector<std::string> err = lines_of(job->err());
  std::sort(err.begin(), err.end());
  EXPECT_EQ(err, (Arguments{"[rank 0] err 0", "[rank 1] err 1"}));
}

TEST_F(LauncherTest, ASingleWorkerSpeaksWithoutAPrefixAndItsLastLineNeedsNoEnd) {
  auto job = start_shell({}, "printf 'one\\ntwo'");
  ASSERT_EQ(job->wait(), 0);
  EXPECT_EQ(job->out(), "one\ntwo\n");
  EXPECT_EQ(job->err(), "");
}

TEST_F(LauncherTest, LinesOfManyWorkersNeverMix) {
  constexpr int kWorkers = 6;
  constexpr int kLines = 3000;
  // Written in pieces, so that lines are cut on their way.
  auto job =
      start_shell({"--nproc-per-node=" + std::to_string(kWorkers)},
                  "i=0; while [ $i -lt 3000 ]; do printf 'begin %s' $RANK; printf ' middle %s' $i; "
                  "printf ' end %s\\n' $RANK; i=$((i+1)); done");
  ASSERT_EQ(job->wait(seconds(60)), 0);
  std::map<int, int> next;
  for (const std::string& line : lines_of(job->out())) {
    int prefix = -1;
    int begin = -1;
    int middle = -1;
    int end = -1;
    ASSERT_EQ(std::sscanf(line.c_str(), "[rank %d] begin %d middle %d end %d", &prefix, &begin,
                          &middle, &end),
              4)
        << line;
    ASSERT_TRUE(prefix == begin && begin == end) << line;
    ASSERT_EQ(middle, next[prefix]++) << "the order of a worker's lines is kept";
  }
  for (int rank = 0; rank < kWorkers; ++rank) EXPECT_EQ(next[rank], kLines);
}

TEST_F(LauncherTest, AWorkerWritesToAReaderThatIsSlowAndLosesNothing) {
  // 20 MB into a pipe that is read only after a while: the workers wait, ddprun's memory stays
  // small.
  const std::string fifo = directory_ / "fifo";
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  ChildProcess job({"sh", "-c",
                    "exec " + kDdprun +
                        " --nproc-per-node=2 sh -c 'yes 0123456789012345678901234567890 | "
                        "head -n 300000; touch done.$RANK' > fifo"},
                   environment());
  std::ifstream reader(fifo);
  std::string line;
  std::getline(reader, line);
  EXPECT_FALSE(std::filesystem::exists(directory_ / "done.0")) << "nothing has been read yet";
  std::size_t count = 1;
  while (std::getline(reader, line)) ++count;
  EXPECT_EQ(count, 600000u);
  EXPECT_EQ(job.wait(), 0);
}

TEST_F(LauncherTest, RedirectsAndTeesIntoTorchrunsLayout) {
  auto job = start({"--nproc-per-node=2", "--rdzv-id=run7", "--log-dir=logs", "-r", "0:3", "-t",
                    "1:1", "sh", "-c", "echo out $RANK; echo err $RANK >&2"});
  ASSERT_EQ(job->wait(), 0);
  EXPECT_EQ(job->out(), "[default1]:out 1\n");
  EXPECT_EQ(job->err(), "[rank 1] err 1\n");
  std::vector<std::filesystem::path> runs;
  for (const auto& entry : std::filesystem::directory_iterator(directory_ / "logs"))
    runs.push_back(entry.path());
  ASSERT_EQ(runs.size(), 1u);
  EXPECT_EQ(runs[0].filename().string().substr(0, 5), "run7_");
  EXPECT_EQ(read_file(runs[0] / "attempt_0/0/stdout.log"), "out 0\n");
  EXPECT_EQ(read_file(runs[0] / "attempt_0/0/stderr.log"), "err 0\n");
  EXPECT_EQ(read_file(runs[0] / "attempt_0/1/stdout.log"), "out 1\n");
  EXPECT_FALSE(std::filesystem::exists(runs[0] / "attempt_0/1/stderr.log"));
}

// --- what a worker finds

TEST_F(LauncherTest, WorkersFindTheirPlaceInTheEnvironmentAndAStoreThatAnswers) {
  auto job = start_shell(
      {"--nproc-per-node=3", "--max-restarts=2"},
      "env | grep -E '^(RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE|GROUP_RANK|MASTER_ADDR|"
      "TORCHELASTIC_RESTART_COUNT|TORCHELASTIC_MAX_RESTARTS|TORCHELASTIC_USE_AGENT_STORE|"
      "OMP_NUM_THREADS|DDPRUN_GENERATION)=' | sort | tr '\\n' ' '; echo; "
      "test -d $(dirname $TORCHELASTIC_ERROR_FILE) && echo dir ok");
  ASSERT_EQ(job->wait(), 0);
  const std::string out = job->out();
  EXPECT_NE(out.find("DDPRUN_GENERATION=0 GROUP_RANK=0 LOCAL_RANK=2 LOCAL_WORLD_SIZE=3 "
                     "MASTER_ADDR=127.0.0.1 "),
            std::string::npos)
      << out;
  EXPECT_NE(
      out.find("OMP_NUM_THREADS=1 RANK=1 TORCHELASTIC_MAX_RESTARTS=2 TORCHELASTIC_RESTART_COUNT=0 "
               "TORCHELASTIC_USE_AGENT_STORE=True WORLD_SIZE=3"),
      std::string::npos)
      << out;
  EXPECT_NE(out.find("[rank 0] dir ok"), std::string::npos);
}

TEST_F(LauncherTest, AWorkerStartsClean) {
  // Its own session, default signals, stdin at its end, and no descriptor of ours.
  auto job =
      start_shell({},
                  "cat; ls /proc/$$/fd | tr '\\n' ' '; "
                  // By the shell itself: while a shell forks for grep, its own signals are blocked.
                  "while read -r line; do case $line in Sig[BI]*) echo \"$line\";; esac; done "
                  "< /proc/$$/status; "
                  "[ $(ps -o sid= -p $$) = $$ ] && echo own session");
  ASSERT_EQ(job->wait(), 0) << job->err();
  EXPECT_NE(job->out().find("0 1 2 "), std::string::npos) << job->out();
  EXPECT_EQ(job->out().find(" 3 "), std::string::npos) << job->out();
  EXPECT_NE(job->out().find("SigBlk:\t0000000000000000"), std::string::npos) << job->out();
  EXPECT_NE(job->out().find("SigIgn:\t0000000000000000"), std::string::npos) << job->out();
  EXPECT_NE(job->out().find("own session"), std::string::npos) << job->out();
}

TEST_F(LauncherTest, RunsPythonScriptsAndModulesThroughPython) {
  std::ofstream(directory_ / "train.py")
      << "import os, sys\nprint('py', os.environ['RANK'], sys.argv[1:])\n";
  for (const Arguments& program :
       std::vector<Arguments>{{"train.py", "--x"}, {"-m", "train", "--x"}}) {
    Arguments arguments{"--nproc-per-node=2"};
    arguments.insert(arguments.end(), program.begin(), program.end());
    auto job = start(arguments);
    ASSERT_EQ(job->wait(), 0) << job->err();
    EXPECT_NE(job->out().find("[rank 1] py 1 ['--x']"), std::string::npos) << job->out();
  }
  std::ofstream(directory_ / "python.sh") << "#!/bin/sh\necho interpreter \"$@\"\n";
  std::filesystem::permissions(directory_ / "python.sh", std::filesystem::perms::owner_all);
  auto chosen = start({"train.py"}, {{"PYTHON_EXEC", "./python.sh"}});
  ASSERT_EQ(chosen->wait(), 0) << chosen->err();
  EXPECT_EQ(chosen->out(), "interpreter -u train.py\n");
}

// --- failure

TEST_F(LauncherTest, EndsWithTheFirstFailuresCodeAndTellsItsStory) {
  auto job = start_shell({"--nproc-per-node=3"},
                         "if [ $RANK = 1 ]; then echo the reason >&2; exit 7; fi; exec sleep 1000");
  ASSERT_EQ(job->wait(), 7);
  const std::string err = job->err();
  EXPECT_NE(err.find("first failure: rank 1 (local rank 1 on "), std::string::npos) << err;
  EXPECT_NE(err.find("exited with code 7"), std::string::npos) << err;
  EXPECT_NE(err.find("| the reason"), std::string::npos) << err;
  EXPECT_NE(err.find("was killed by SIGTERM when ddprun stopped it"), std::string::npos) << err;
}

TEST_F(LauncherTest, ASignalsNumberIsAddedTo128) {
  auto job = start_shell({"--nproc-per-node=2"}, "[ $RANK = 1 ] && kill -9 $$; exec sleep 1000");
  EXPECT_EQ(job->wait(), 137);
  EXPECT_NE(job->err().find("was killed by SIGKILL"), std::string::npos);
}

TEST_F(LauncherTest, RestartsEveryWorkerUntilTheBudgetIsUsedUp) {
  auto job = start_shell(
      {"--nproc-per-node=2", "--max-restarts=2"},
      "echo gen $DDPRUN_GENERATION restart $TORCHELASTIC_RESTART_COUNT port $MASTER_PORT; "
      "[ $RANK = 1 ] && exit 3; exec sleep 1000");
  ASSERT_EQ(job->wait(), 3);
  std::set<std::string> ports;
  for (const std::string& line : lines_of(job->out())) ports.insert(line.substr(line.rfind(' ')));
  EXPECT_EQ(ports.size(), 3u) << "every generation has a store of its own";
  EXPECT_NE(job->out().find("[rank 1] gen 2 restart 2"), std::string::npos) << job->out();
  EXPECT_NE(job->err().find("failed after 2 of 2 restarts"), std::string::npos) << job->err();
}

TEST_F(LauncherTest, AJobThatRecoversEndsWell) {
  auto job = start_shell({"--nproc-per-node=2", "--max-restarts=3"},
                         "[ $DDPRUN_GENERATION = 0 ] && [ $RANK = 1 ] && kill -9 $$; "
                         "[ $DDPRUN_GENERATION = 0 ] && exec sleep 1000; exit 0");
  EXPECT_EQ(job->wait(), 0) << job->err();
  EXPECT_NE(job->err().find("restart 1 of 3: rank 1"), std::string::npos) << job->err();
}

TEST_F(LauncherTest, KillsFromOutsideAtAnyTimeAreSurvivedAndNoGenerationOverlapsTheNext) {
  // Each worker leaves a file while it lives; a later generation must find none of an earlier one.
  auto job =
      start_shell({"--nproc-per-node=3", "--max-restarts=15"},
                  "for f in alive.*; do case $f in alive.$DDPRUN_GENERATION.*|'alive.*') ;; *) "
                  "kill -0 $(cat $f) 2>/dev/null && echo OVERLAP $f;; esac; done; "
                  "echo $$ > alive.$DDPRUN_GENERATION.$RANK; "
                  "[ $DDPRUN_GENERATION = 15 ] && exit 0; echo started; exec sleep 1000");
  Rng rng(std::random_device{}());
  for (int generation = 0; generation < 15; ++generation) {
    const std::string file =
        directory_ / ("alive." + std::to_string(generation) + "." + std::to_string(rng.below(3)));
    ASSERT_TRUE(eventually([&] { return !read_file(file).empty(); })) << job->err();
    kill(std::stoi(read_file(file)), rng.chance(0.5) ? SIGKILL : SIGSEGV);
  }
  ASSERT_EQ(job->wait(), 0) << job->err();
  EXPECT_EQ(job->out().find("OVERLAP"), std::string::npos) << job->out();
}

TEST_F(LauncherTest, AWorkerThatIgnoresSigtermIsKilledAfterTheGraceAndItsDetachedChildrenToo) {
  auto job = start_shell(
      {"--nproc-per-node=2", "--shutdown-grace=0.3"},
      "if [ $RANK = 1 ]; then while [ ! -e ready ]; do sleep 0.01; done; exit 5; fi; "
      "trap '' TERM; setsid sh -c \"trap '' TERM HUP; (setsid sleep 1000 &) ; touch ready; "
      "sleep 1000\" & wait; wait; while :; do sleep 1; done");
  EXPECT_EQ(job->wait(), 5);
  EXPECT_NE(job->err().find("did not end within 300 ms: SIGKILL"), std::string::npos) << job->err();
}

TEST_F(LauncherTest, WhatWellEndedWorkersLeaveRunningIsEndedToo) {
  auto job = start_shell({"--nproc-per-node=2"}, "setsid sleep 1000 > /dev/null 2>&1 & exit 0");
  EXPECT_EQ(job->wait(), 0) << job->err();
  EXPECT_TRUE(left_behind().empty());
}

TEST_F(LauncherTest, AnErrorFileOfAWorkerIsPartOfTheReport) {
  auto job = start_shell({},
                         "echo '{\"message\": {\"message\": \"ValueError: boom\"}}' > "
                         "$TORCHELASTIC_ERROR_FILE; exit 1");
  EXPECT_EQ(job->wait(), 1);
  EXPECT_NE(job->err().find("it said: ValueError: boom"), std::string::npos) << job->err();
}

TEST_F(LauncherTest, AWorkerThatCannotBeExecutedIsNotRestarted) {
  std::ofstream(directory_ / "broken") << "no program at all";
  std::filesystem::permissions(directory_ / "broken", std::filesystem::perms::owner_all);
  auto job = start({"--nproc-per-node=2", "--max-restarts=3", "./broken"});
  EXPECT_EQ(job->wait(), 64);
  EXPECT_NE(job->err().find("./broken: Exec format error"), std::string::npos) << job->err();
  EXPECT_EQ(job->err().find("restart 1"), std::string::npos);
}

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
  EXPECT_NE(job->out().find("[rank 0] got " + name), std::string::npos) << job->out();
  EXPECT_NE(job->out().find("[rank 1] got " + name), std::string::npos) << job->out();
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

TEST_F(LauncherTest, WhatAnEndingWorkerStartsAndLeavesIsToldToEndAsWell) {
  // The shell stays until its child is no shell any more, which could swallow the signal.
  auto job =
      start_shell({},
                  "trap 'sleep 1000 & until grep -q sleep /proc/$!/comm; do :; done; exit 0' TERM; "
                  "echo ready; while :; do sleep 0.01; done");
  ASSERT_TRUE(job->wait_for_out("ready"));
  job->signal(SIGTERM);
  EXPECT_EQ(job->wait(seconds(10)), 143) << "it waited for the grace: " << job->err();
}

TEST_F(LauncherTest, ASignalAtAnyMomentOfTheStartLeavesNothing) {
  Rng rng(std::random_device{}());
  for (int round = 0; round < 20; ++round) {
    auto job = start_shell({"--nproc-per-node=2"}, "sleep 1000 & exec sleep 1000");
    testing_support::let_pass(Duration(static_cast<std::int64_t>(rng.below(15'000'000))));
    job->signal(SIGTERM);
    ASSERT_EQ(job->wait(), 143) << "round " << round << job->err();
    ASSERT_TRUE(left_behind().empty()) << "round " << round;
  }
}

TEST_F(LauncherTest, UnderNohupAHangupIsIgnored) {
  ChildProcess job({"sh", "-c",
                    "trap '' HUP; exec " + kDdprun +
                        " sh -c 'echo ready; while [ ! -e go ]; do sleep 0.02; done; echo done'"},
                   environment());
  ASSERT_TRUE(job.wait_for_out("ready"));
  job.signal(SIGHUP);
  std::ofstream(directory_ / "go");
  EXPECT_EQ(job.wait(), 0) << job.err();
  EXPECT_NE(job.out().find("done"), std::string::npos);
}

// --- kill -9 of ddprun itself

// The processes of ddprun on this node: the guardian is the one we started.
struct Tree {
  pid_t guardian;
  pid_t keeper;
  pid_t agent;
  pid_t worker;
};

pid_t child_of(pid_t parent) {
  std::ifstream file("/proc/" + std::to_string(parent) + "/task/" + std::to_string(parent) +
                     "/children");
  pid_t child = -1;
  file >> child;
  return child;
}

Tree tree_of(const ChildProcess& job) {
  Tree tree{};
  tree.guardian = job.pid();
  tree.keeper = child_of(tree.guardian);
  tree.agent = child_of(tree.keeper);
  tree.worker = child_of(tree.agent);
  return tree;
}

class KillTest : public LauncherTest, public testing::WithParamInterface<std::string> {};

// Workers with a child that has left their session, lost its parent and ignores every signal.
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
  EXPECT_NE(job->err().find("the agent (pid "), std::string::npos) << job->err();
}

TEST_F(LauncherTest, KillsOfDdprunAtRandomMomentsLeaveNothing) {
  Rng rng(std::random_device{}());
  for (int round = 0; round < 30; ++round) {
    auto job = start_shell(
        {"--nproc-per-node=2", "--max-restarts=100"},
        "[ $RANK = 1 ] && [ $((DDPRUN_GENERATION % 3)) = 1 ] && exit 1; "
        "setsid sleep 1000 & sleep 0.0$((RANK + 1)); [ $RANK = 0 ] && exit 2; exec sleep 1000");
    testing_support::let_pass(Duration(static_cast<std::int64_t>(rng.below(120'000'000))));
    const Tree tree = tree_of(*job);
    const std::vector<pid_t> guards{tree.guardian, tree.keeper, tree.agent};
    const std::size_t spared = rng.below(3);  // one of the three is left to clear up
    const bool only_one = rng.chance(0.5);
    bool killed = false;
    for (std::size_t i = 0; i < guards.size(); ++i) {
      if (i == spared || guards[i] <= 1 || (only_one && i != (spared + 1) % 3)) continue;
      killed = kill(guards[i], SIGKILL) == 0 || killed;
    }
    if (!killed) job->signal(SIGTERM);  // so early that there is only the guardian
    ASSERT_TRUE(job->wait());
    ASSERT_TRUE(eventually([&] { return left_behind().empty(); }, seconds(8)))
        << "round " << round << ": of guardian, keeper and agent number " << spared
        << " was spared; left:\n"
        << describe_processes(left_behind()) << job->err();
    // A guardian that is killed while it starts may leave the directory it has just made.
    for (const auto& entry : std::filesystem::directory_iterator(directory_ / "tmp")) {
      std::filesystem::remove_all(entry.path());
    }
  }
}

// --- several agents on this host

class TwoAgents : public LauncherTest {
 protected:
  std::string start_service() {
    service_ = std::make_unique<ChildProcess>(
        Arguments{DDPRUN_BIN_DIR "/ddp-rendezvous", "--listen", "127.0.0.1:0"}, environment());
    EXPECT_TRUE(service_->wait_for_out("\n"));
    const std::string line = service_->out();
    return line.substr(line.rfind(' ') + 1, line.find('\n') - line.rfind(' ') - 1);
  }
  Arguments node(const std::string& endpoint, Arguments more, const std::string& script) const {
    Arguments arguments{"--rdzv-endpoint=" + endpoint, "--rdzv-id=job", "--nproc-per-node=2"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    arguments.insert(arguments.end(), {"sh", "-c", script});
    return arguments;
  }
  void TearDown() override {
    if (service_) {
      service_->signal(SIGTERM);
      EXPECT_EQ(service_->wait(), 0) << service_->err();
    }
    LauncherTest::TearDown();
  }

  std::unique_ptr<ChildProcess> service_;
};

constexpr const char* kSayPlace =
    "echo rank $RANK of $WORLD_SIZE node $GROUP_RANK store $MASTER_ADDR:$MASTER_PORT";

TEST_F(TwoAgents, MeetAtTheServiceInAnyOrderAndShareAStore) {
  const std::string endpoint = start_service();
  auto one = start(node(endpoint, {"--nnodes=2", "--node-rank=1"}, kSayPlace));
  ASSERT_TRUE(one->wait_for_err("waiting: 1 of 2 nodes here")) << one->err();
  auto zero = start(node(endpoint, {"--nnodes=2", "--node-rank=0"}, kSayPlace));
  ASSERT_EQ(zero->wait(), 0) << zero->err();
  ASSERT_EQ(one->wait(), 0) << one->err();
  EXPECT_NE(zero->out().find("rank 1 of 4 node 0 store"), std::string::npos) << zero->out();
  EXPECT_NE(one->out().find("rank 3 of 4 node 1 store"), std::string::npos) << one->out();
  const auto store = [](const std::string& out) { return out.substr(out.rfind("store")); };
  EXPECT_EQ(store(lines_of(zero->out())[0]), store(lines_of(one->out())[0]));
}

TEST_F(TwoAgents, OneOfThemServesWhenNobodyElseDoes) {
  // A port that was free a moment ago.
  const std::string endpoint = [this] {
    const std::string found = start_service();
    service_->signal(SIGTERM);
    service_->wait();
    service_.reset();
    return found;
  }();
  auto a = start(node(endpoint, {"--nnodes=2"}, kSayPlace));
  auto b = start(node(endpoint, {"--nnodes=2"}, kSayPlace));
  EXPECT_EQ(a->wait(), 0) << a->err();
  EXPECT_EQ(b->wait(), 0) << b->err();
  EXPECT_EQ(lines_of(a->out() + b->out()).size(), 4u);
}

TEST_F(TwoAgents, TorchrunsStaticModeNeedsOnePortForEverything) {
  const std::string endpoint = [this] {
    const std::string found = start_service();
    service_->signal(SIGTERM);
    service_->wait();
    service_.reset();
    return found;
  }();
  const std::string port = endpoint.substr(endpoint.rfind(':') + 1);
  const Arguments common{"--nnodes=2", "--master-addr=127.0.0.1", "--master-port=" + port};
  const auto run = [&](const std::string& rank) {
    Arguments arguments = common;
    arguments.insert(arguments.end(), {"--node-rank=" + rank, "sh", "-c", kSayPlace});
    return start(arguments);
  };
  auto one = run("1");
  auto zero = run("0");
  ASSERT_EQ(zero->wait(), 0) << zero->err();
  ASSERT_EQ(one->wait(), 0) << one->err();
  EXPECT_NE(one->out().find("rank 1 of 2 node 1 store 127.0.0.1:" + port), std::string::npos)
      << one->out();
}

TEST_F(TwoAgents, AFailureOnOneNodeRestartsBoth) {
  const std::string endpoint = start_service();
  const std::string script =
      "echo gen $DDPRUN_GENERATION rank $RANK; [ $DDPRUN_GENERATION = 1 ] && exit 0; [ $RANK = 3 ] "
      "&& kill -9 $$; "
      "exec sleep 1000";
  const Arguments options{"--nnodes=2", "--max-restarts=1"};
  auto a = start(node(endpoint, options, script));
  auto b = start(node(endpoint, options, script));
  EXPECT_EQ(a->wait(), 0) << a->err();
  EXPECT_EQ(b->wait(), 0) << b->err();
  EXPECT_NE((a->out() + b->out()).find("gen 1 rank 0"), std::string::npos);
  for (const auto* job : {a.get(), b.get()}) {
    EXPECT_NE(job->err().find("restart 1 of 1: rank 3"), std::string::npos) << job->err();
  }
}

TEST_F(TwoAgents, BothEndWithTheFirstFailuresCode) {
  const std::string endpoint = start_service();
  const std::string script = "[ $RANK = 2 ] && exit 9; exec sleep 1000";
  auto a = start(node(endpoint, {"--nnodes=2"}, script));
  auto b = start(node(endpoint, {"--nnodes=2"}, script));
  EXPECT_EQ(a->wait(), 9) << a->err();
  EXPECT_EQ(b->wait(), 9) << b->err();
}

TEST_F(TwoAgents, AnElasticJobGoesOnWithoutAKilledNode) {
  const std::string endpoint = start_service();
  const std::string script =
      "echo gen $DDPRUN_GENERATION world $WORLD_SIZE; [ $WORLD_SIZE = 2 ] && exit 0; exec sleep "
      "1000";
  const Arguments options{"--nnodes=1:2", "--max-restarts=1"};
  auto a = start(node(endpoint, options, script));
  auto b = start(node(endpoint, options, script));
  ASSERT_TRUE(a->wait_for_out("gen 0 world 4") && b->wait_for_out("gen 0 world 4"));
  kill(tree_of(*b).agent, SIGKILL);
  EXPECT_EQ(a->wait(seconds(15)), 0) << a->err();
  EXPECT_NE(a->out().find("gen 1 world 2"), std::string::npos) << a->out();
  EXPECT_NE(a->err().find("was lost"), std::string::npos) << a->err();
}

TEST_F(TwoAgents, ADeadServiceWithItsNodeEndsTheJobOnTheOthers) {
  const std::string endpoint = [this] {
    const std::string found = start_service();
    service_->signal(SIGTERM);
    service_->wait();
    service_.reset();
    return found;
  }();
  auto host = start(node(endpoint, {"--nnodes=2"}, "echo ready; exec sleep 1000"));
  ASSERT_TRUE(host->wait_for_err("waiting"));
  auto other = start(node(endpoint, {"--nnodes=2"}, "echo ready; exec sleep 1000"));
  ASSERT_TRUE(other->wait_for_out("ready"));
  const TimePoint killed = BootClock::now();
  kill(tree_of(*host).agent, SIGKILL);
  EXPECT_EQ(other->wait(), 67) << other->err();
  EXPECT_LT(BootClock::now() - killed, seconds(10));
  EXPECT_NE(other->err().find("inside the agent on"), std::string::npos) << other->err();
}

TEST_F(TwoAgents, AnAgentThatComesBackFromAnOutageOfTheServiceFindsItsJobAgain) {
  const std::string endpoint = start_service();
  auto a = start(node(endpoint, {"--nnodes=1", "--max-restarts=0"},
                      "echo ready $DDPRUN_GENERATION; while [ ! -e go ]; do sleep 0.02; done"));
  ASSERT_TRUE(a->wait_for_out("ready 0"));
  service_->signal(SIGSTOP);
  testing_support::let_pass(seconds(2));
  service_->signal(SIGCONT);
  std::ofstream(directory_ / "go");
  EXPECT_EQ(a->wait(), 0) << a->err();
  EXPECT_EQ(a->err().find("has not answered"), std::string::npos) << a->err();
}

// --- bad input

struct BadInput {
  Arguments arguments;
  int code;
  std::string named;
};

TEST_F(LauncherTest, BadInputGetsOneLineThatNamesItAndADocumentedCode) {
  std::ofstream(directory_ / "data.txt") << "x";
  std::filesystem::create_directory(directory_ / "folder");
  std::ofstream(directory_ / "tool") << "#!/bin/sh\n";
  std::filesystem::permissions(directory_ / "tool", std::filesystem::perms::owner_all);
  const std::vector<BadInput> cases{
      {{"--nonsense", "true"}, 2, "--nonsense"},
      {{"--nnodes=3:2", "true"}, 2, "did you mean 2:3"},
      {{"--nproc-per-node=gpu", "true"}, 2, "no GPU is visible here"},
      {{"--nproc-per-node=x", "true"}, 2, "--nproc-per-node"},
      {{"./missing"}, 2, "./missing: no such file"},
      {{"no-such-program"}, 2, "no-such-program: no such program in PATH"},
      {{"tool"}, 2, "did you mean ./tool?"},
      {{"./data.txt"}, 2, "./data.txt: it is not executable"},
      {{"./folder"}, 2, "./folder: it is a directory"},
      {{"missing.py"}, 2, "missing.py: no such file"},
      {{"--nnodes=2", "true"}, 2, "--rdzv-endpoint"},
      {{"--nnodes=2", "--rdzv-endpoint=no-such-host.invalid:29400", "true"},
       69,
       "no-such-host.invalid"},
      {{"--nnodes=2", "--rdzv-endpoint=127.0.0.1:x", "true"}, 2, "--rdzv-endpoint"},
      {{"--nnodes=2", "--master-addr=198.51.100.1", "true"}, 69, "no address of this host"},
      {{"--log-dir=/proc/nowhere", "true"}, 2, "--log-dir"},
      {{"--no-python", "-m", "x"}, 2, "--no-python"},
      {{}, 2, "which program?"},
  };
  for (const BadInput& bad : cases) {
    auto job = start(bad.arguments);
    EXPECT_EQ(job->wait(), bad.code) << bad.named << "\n" << job->err();
    EXPECT_EQ(job->out(), "");
    EXPECT_EQ(lines_of(job->err()).size(), 1u) << job->err();
    EXPECT_NE(job->err().find(bad.named), std::string::npos) << job->err();
  }
}

TEST_F(TwoAgents, APortThatIsTakenIsNamed) {
  const std::string endpoint = start_service();
  const std::string port = endpoint.substr(endpoint.rfind(':') + 1);
  auto job = start({"--master-port=" + port, "true"});
  EXPECT_EQ(job->wait(), 69);
  EXPECT_NE(job->err().find(port), std::string::npos) << job->err();
  EXPECT_NE(job->err().find("in use"), std::string::npos) << job->err();
  EXPECT_EQ(lines_of(job->err()).size(), 1u) << job->err();
}

TEST_F(LauncherTest, AnEndpointTakenBySomethingElseIsNamed) {
  ChildProcess store({DDPRUN_BIN_DIR "/ddp-store", "--listen", "127.0.0.1:0"}, environment());
  ASSERT_TRUE(store.wait_for_out("\n"));
  const std::string line = store.out();
  const std::string endpoint =
      line.substr(line.rfind(' ') + 1, line.find('\n') - line.rfind(' ') - 1);
  auto job = start({"--rdzv-endpoint=" + endpoint, "true"});
  EXPECT_EQ(job->wait(), 69) << job->err();
  EXPECT_NE(job->err().find("no rendezvous service"), std::string::npos) << job->err();
  store.signal(SIGTERM);
  store.wait();
}

TEST_F(LauncherTest, HelpAndVersionGoToStandardOutput) {
  auto help = start({"--help"});
  EXPECT_EQ(help->wait(), 0);
  EXPECT_NE(help->out().find("Usage: ddprun"), std::string::npos);
  auto version = start({"--version"});
  EXPECT_EQ(version->wait(), 0);
  EXPECT_EQ(version->out().substr(0, 7), "ddprun ");
}

}  // namespace
}  // namespace ddprun
