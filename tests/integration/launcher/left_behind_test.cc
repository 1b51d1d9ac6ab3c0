// Tests that nothing is left. Random workers resist their end, and they and ddprun's own
// processes are ended at random. Then the test checks /proc, files, control groups and the
// store's port.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/process_stat.h"
#include "base/rng.h"
#include "launcher/guard/run_cgroup.h"
#include "launcher/process/own_cgroup.h"
#include "tests/integration/launcher/launcher_frame.h"
#include "tests/support/test_seed.h"

namespace ddprun::testing_support {
namespace {

using testing::HasSubstr;

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr int kGuardian = 0;
constexpr int kKeeper = 1;
constexpr int kAgent = 2;
constexpr int kWorker = 3;

// The actions of workers. Each prints where it is first.
constexpr std::array kWorkers{
    "exec sleep 1000",
    "trap '' TERM INT HUP; while :; do sleep 0.05; done",
    "setsid sleep 1000 & exec sleep 1000",
    "setsid sh -c \"trap '' TERM HUP INT; (setsid sh -c 'exec sleep 1000' &); sleep 1000\" & wait",
    "(setsid sh -c \"trap '' TERM; while :; do sleep 0.05; done\" &); exec sleep 1000",
    "kill -STOP $$; exec sleep 1000",
    "sleep 1000 & kill -STOP $!; exec sleep 1000",
    "for i in 1 2 3 4 5 6; do setsid sleep 1000 & done; exit 0",
    "sleep 0.03; exit 3",
    "sleep 0.03; kill -SEGV $$",
    "exec 9> shared.$RANK; setsid sleep 1000 & exec sleep 1000",
};

// How the test ends a job. Without an entry, the job ends by itself or on request.
struct Ending {
  const char* name;
  std::vector<int> killed;
  int signal = 0;
};
const std::vector<Ending>& endings() {
  static const std::vector<Ending> all{
      {"kill the guardian", {kGuardian}},
      {"kill the keeper", {kKeeper}},
      {"kill the agent", {kAgent}},
      {"kill a worker", {kWorker}},
      {"kill guardian and keeper", {kGuardian, kKeeper}},
      {"kill guardian and agent", {kGuardian, kAgent}},
      {"kill keeper and agent", {kKeeper, kAgent}},
      {"kill guardian and worker", {kGuardian, kWorker}},
      {"kill agent and worker", {kAgent, kWorker}},
      {"SIGTERM", {}, SIGTERM},
      {"SIGINT", {}, SIGINT},
      {"SIGHUP", {}, SIGHUP},
  };
  return all;
}

class LeftBehind : public LauncherTest {
 protected:
  // Starts ddprun again. It removes what is left after a kill of all guards, or of a guard
  // that had just begun.
  void start_once_more() const {
    auto next = start({"true"});
    EXPECT_EQ(next->wait(), 0) << next->err();
  }

  // Returns the control groups of a run. Each process of the run has printed its group's
  // directory, if it has one.
  static std::set<std::string> run_cgroups_in(const std::string& out) {
    std::set<std::string> found;
    const std::string own = own_cgroup_directory();
    for (const std::string& line : lines_of(out)) {
      const std::size_t at = line.find("/ddprun_");
      if (at == std::string::npos) continue;
      found.insert(own + line.substr(at, line.find('/', at + 1) - at));
    }
    return found;
  }
  static std::set<std::string> ports_in(const std::string& out) {
    std::set<std::string> found;
    for (const std::string& line : lines_of(out)) {
      const std::size_t at = line.find("port ");
      if (at != std::string::npos) found.insert(line.substr(at + 5));
    }
    return found;
  }
  static bool somebody_listens_on(const std::string& port) {
    std::ifstream table("/proc/net/tcp");
    char wanted[16];
    std::snprintf(wanted, sizeof wanted, ":%04X ", static_cast<unsigned>(std::stoi(port)));
    for (std::string line; std::getline(table, line);) {
      constexpr const char* kListens = " 0A ";
      if (line.find(wanted) != std::string::npos && line.find(kListens) != std::string::npos) {
        return true;
      }
    }
    return false;
  }

  void expect_nothing_left(const std::string& out) const {
    EXPECT_TRUE(eventually([&] { return left_behind().empty(); }, seconds(10)))
        << describe_processes(left_behind());
    if (!std::filesystem::is_empty(tmp())) start_once_more();
    EXPECT_TRUE(std::filesystem::is_empty(tmp())) << listing(tmp()).front();
    for (const std::string& cgroup : run_cgroups_in(out)) {
      if (std::filesystem::exists(cgroup)) start_once_more();
      EXPECT_FALSE(std::filesystem::exists(cgroup)) << cgroup;
    }
    for (const std::string& port : ports_in(out)) EXPECT_FALSE(somebody_listens_on(port)) << port;
  }
};

TEST_F(LeftBehind, AHundredRandomScenariosLeaveNothing) {
  const std::uint64_t first_seed = test_seed(1);
  const std::uint64_t rounds = number_from("DDPRUN_LEFT_BEHIND_ROUNDS", 100);
  for (std::uint64_t seed = first_seed; seed < first_seed + rounds; ++seed) {
    SCOPED_TRACE(seed_text(seed) + " DDPRUN_LEFT_BEHIND_ROUNDS=1");
    Rng rng(seed);
    const std::string workers = std::to_string(1 + rng.below(3));
    std::string script = "cat /proc/self/cgroup; echo port $MASTER_PORT; case $RANK in ";
    std::string told;
    for (int rank = 0; rank < 3; ++rank) {
      const char* worker = kWorkers[rng.below(kWorkers.size())];
      script += std::to_string(rank) + ") " + worker + ";; ";
      told += std::string("\n  worker: ") + worker;
    }
    const Ending& ending = endings()[rng.below(endings().size())];
    SCOPED_TRACE(ending.name + told);
    auto job = start_shell({"--nproc-per-node=" + workers, "--shutdown-grace=0.2",
                            "--max-restarts=" + std::to_string(rng.below(3))},
                           script + "esac");
    // Half of them are killed while they start.
    let_pass(up_to(milliseconds(rng.chance(0.5) ? 20 : 250), rng));
    const Tree tree = tree_of(*job);
    const std::array pids{tree.guardian, tree.keeper, tree.agent, tree.worker};
    int killed = 0;
    for (const int who : ending.killed) {
      const pid_t pid = pids[static_cast<std::size_t>(who)];
      if (pid > 1 && kill(pid, SIGKILL) == 0) ++killed;
    }
    const bool ends_by_it = killed > 0 && ending.killed != std::vector<int>{kWorker};
    if (!ends_by_it) job->signal(ending.signal != 0 ? ending.signal : SIGTERM);
    ASSERT_TRUE(job->wait()) << "it hangs\n" << job->err();
    expect_nothing_left(job->out());
    if (HasFailure()) {
      ADD_FAILURE() << job->err();
      return;
    }
  }
}

TEST_F(LeftBehind, WhatAKillOfAllGuardsLeavesTheNextStartListsAndRemoves) {
  auto job = start_shell({"--nproc-per-node=2"},
                         "cat /proc/self/cgroup; setsid sh -c \"trap '' TERM; echo ready; sleep "
                         "1000\" & exec sleep 1000");
  ASSERT_TRUE(job->wait_for_out("[rank 0] ready") && job->wait_for_out("[rank 1] ready"));
  const std::set<std::string> cgroups = run_cgroups_in(job->out());
  const Tree tree = tree_of(*job);
  const std::array guards{tree.guardian, tree.keeper, tree.agent};
  // They are stopped first: a guard that sees another one die removes the run's files.
  for (const int signal : {SIGSTOP, SIGKILL})
    for (const pid_t pid : guards) kill(pid, signal);
  // The run's files belong to the guards until those are dead.
  ASSERT_TRUE(job->wait());
  for (const pid_t pid : guards) {
    ASSERT_TRUE(eventually([&] {
      const std::optional<ProcessStat> stat = process_stat(pid);
      return !stat || stat->state == 'Z';
    }));
  }
  std::vector<std::string> files = listing(tmp());
  // Leaves out the directory of the job's socket.
  std::erase_if(files, [](const std::string& name) { return !name.starts_with("ddprun_"); });
  ASSERT_EQ(files.size(), 1u);
  auto next = start({"sh", "-c", "sleep 0.3"});
  EXPECT_TRUE(next->wait_for_err("removed " + tmp() + "/" + files.front()));
  EXPECT_EQ(next->wait(), 0);
  EXPECT_TRUE(std::filesystem::is_empty(tmp()));
  for (const std::string& cgroup : cgroups) {
    // This start has removed it, or the start of another test, which may take up to 2 s.
    EXPECT_TRUE(eventually([&] { return !std::filesystem::exists(cgroup); }, seconds(4)));
  }
  if (cgroups.empty()) {  // no process can end the workers' own children
    for (const pid_t pid : left_behind()) kill(pid, SIGKILL);
  }
  EXPECT_TRUE(eventually([&] { return left_behind().empty(); }, seconds(5)))
      << describe_processes(left_behind());
}

TEST_F(LeftBehind, WithoutTmpdirNoFileIsLeftEither) {
  auto job = start_shell({}, "echo $TORCHELASTIC_ERROR_FILE; test -d ${TORCHELASTIC_ERROR_FILE%/*}",
                         {{"TMPDIR", ""}});
  const std::string file = job->line().value_or("");
  EXPECT_EQ(job->wait(), 0);
  const std::filesystem::path run =
      std::filesystem::path(file).parent_path().parent_path().parent_path();
  EXPECT_THAT(run.string(), HasSubstr("/ddprun_"));
  EXPECT_FALSE(std::filesystem::exists(run)) << run;
}

// --- ddprun as the first process of a PID namespace, as in containers

class FirstProcess : public LeftBehind {
 protected:
  void SetUp() override {
    LeftBehind::SetUp();
    ChildProcess probe({"unshare", "--pid", "--fork", "--mount-proc", "true"}, environment());
    if (probe.wait() != 0) GTEST_SKIP() << "no PID namespace can be made here";
  }
  std::unique_ptr<ChildProcess> start_in_container(const Arguments& options,
                                                   const std::string& script) {
    return std::make_unique<ChildProcess>(
        joined(joined({"unshare", "--pid", "--fork", "--mount-proc", program("ddprun")}, options),
               {"sh", "-c", script}),
        environment());
  }
};

TEST_F(FirstProcess, EndsWithTheJobsCode) {
  EXPECT_EQ(start_in_container({}, "exit 7")->wait(), 7);
  EXPECT_EQ(start_in_container({"--nproc-per-node=2"}, "exit 0")->wait(), 0);
}

TEST_F(FirstProcess, ForwardsSignalsThoughNoneEndsItByDefault) {
  for (const int signal : {SIGTERM, SIGINT}) {
    auto job = start_in_container({"--nproc-per-node=2"},
                                  "trap 'echo told; exit 0' TERM INT; echo ready; "
                                  "while :; do sleep 0.02; done");
    ASSERT_TRUE(job->wait_for_out("[rank 0] ready") && job->wait_for_out("[rank 1] ready"));
    const pid_t first = first_child_of(job->pid());
    ASSERT_GT(first, 1);
    kill(first, signal);
    EXPECT_EQ(job->wait(), 128 + signal) << job->err();
    EXPECT_THAT(job->out(), HasSubstr("[rank 1] told"));
  }
}

TEST_F(FirstProcess, ReapsWhatLostItsParent) {
  auto job = start_in_container(
      {},
      "for i in 1 2 3; do (setsid sleep 0.01 &); done; i=0; "
      "while [ $i -lt 100 ]; do ps -A -o stat= | grep -q sleep || true; i=$((i+1)); "
      "[ \"$(ps -A -o comm= | grep -c sleep)\" = 0 ] && break; sleep 0.05; done; "
      "ps -A -o stat= | grep -c Z");
  // grep exits with 1 if it counts none.
  EXPECT_EQ(job->wait(), 1) << job->err();
  EXPECT_EQ(job->out(), "0\n");
}

TEST_F(LauncherTest, UnderNohupEveryProcessOfOursIgnoresAHangup) {
  ChildProcess job({"nohup", program("ddprun"), "sh", "-c",
                    "grep SigIgn /proc/$PPID/status /proc/$$/status | sed 's/.*\\(.\\)$/\\1/'; "
                    "echo ready; " +
                        std::string(kUntilGo)},
                   environment());
  ASSERT_TRUE(job.wait_for_out("ready")) << job.err();
  const Tree tree = tree_of(job);
  const auto ignores_hangup = [](pid_t pid) {
    const std::string status = read_file("/proc/" + std::to_string(pid) + "/status");
    const std::size_t at = status.find("SigIgn:\t") + 8;
    return (std::stoull(status.substr(at, 16), nullptr, 16) & 1) != 0;
  };
  for (const pid_t pid : {tree.guardian, tree.keeper, tree.agent, tree.worker}) {
    EXPECT_TRUE(ignores_hangup(pid)) << describe_processes({pid});
    kill(pid, SIGHUP);
  }
  let_go();
  EXPECT_EQ(job.wait(), 0) << job.err();
}

}  // namespace
}  // namespace ddprun::testing_support
