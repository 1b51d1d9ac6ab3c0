// Tests --hang-timeout and --restart-on-progress on real processes: ranks that keep the others
// waiting are found, named, and restarted.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/integration/launcher/launcher_frame.h"
#include "tests/support/held_port.h"

namespace ddprun::testing_support {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

class HangTest : public LauncherTest {
 protected:
  std::unique_ptr<ChildProcess> play(const std::string& plays, Arguments options) const {
    return start(
        joined(joined(options, {"--report-file=report.json"}), {program("hang_worker"), plays}));
  }
  json failures() const {
    return json::parse(read_file(directory_ / "report.json"))["failed_generations"];
  }
  static std::vector<int> ranks_of(const json& ends) {
    std::vector<int> ranks;
    for (const json& end : ends) ranks.push_back(end["rank"]);
    return ranks;
  }
};

TEST_F(HangTest, TheRankThatHasNotComeIsNamedAndTheJobGoesOn) {
  auto job = play("0:wait,1:load,2:wait,3:wait",
                  {"--nproc-per-node=4", "--hang-timeout=1", "--max-restarts=1"});
  ASSERT_EQ(job->wait(), 0) << job->err();
  ASSERT_EQ(failures().size(), 1u);
  const json failed = failures()[0];
  EXPECT_THAT(ranks_of(failed["first"]), ElementsAre(1)) << failed.dump(2);
  const json first = failed["first"][0];
  EXPECT_EQ(first["kind"], "hang");
  EXPECT_EQ(first["step"], 7);
  EXPECT_EQ(first["stderr"], json({"load"}));
  EXPECT_THAT(
      first["message"].get<std::string>(),
      HasSubstr(
          "it has not come to all_reduce of 4096 bytes (sum of float32) (collective 9), where "
          "ranks 0,2-3 have waited 1."));
  EXPECT_THAT(failed["seen"].dump(), HasSubstr("rank 1: in no collective; the last one was 8"));
  EXPECT_THAT(failed["seen"].dump(), HasSubstr("ranks 0,2-3: in all_reduce of 4096 bytes"));
  EXPECT_THAT(job->err(), HasSubstr("what all ranks were doing:"));
  EXPECT_EQ(failed["victims"].size(), 3u);
}

TEST_F(HangTest, WithoutARestartTheJobEndsWithACodeOfItsOwn) {
  auto job = play("0:wait,1:load", {"--nproc-per-node=2", "--hang-timeout=0.5"});
  EXPECT_EQ(job->wait(), 71) << job->err();
  EXPECT_THAT(job->err(), HasSubstr("rank 1 (local rank 1 on "));
}

// A worker reports in the same page that its work is done.
TEST_F(HangTest, ACrashWhenTheWorkIsDoneUsesNoRestartAndStopsNobody) {
  auto job = play("0:outlast,1:crash", {"--nproc-per-node=2", "--max-restarts=1"});
  EXPECT_TRUE(
      job->wait_for_err("SIGABRT after its Context had been destroyed in good order: "
                        "the other ranks go on"))
      << job->err();
  let_go();
  EXPECT_EQ(job->wait(), 128 + SIGABRT) << job->err();
  EXPECT_THAT(job->err(), HasSubstr("not restarted: its training is done"));
  ASSERT_EQ(failures().size(), 1u);
  EXPECT_THAT(ranks_of(failures()[0]["first"]), ElementsAre(1));
  EXPECT_EQ(failures()[0]["first"][0]["after_context"], true);
  EXPECT_TRUE(failures()[0]["victims"].empty());
}

TEST_F(HangTest, AWorkerThatIsStoppedIsSeenAsSuch) {
  auto job = play("0:wait,1:stop", {"--nproc-per-node=2", "--hang-timeout=0.5"});
  EXPECT_EQ(job->wait(), 71) << job->err();
  EXPECT_THAT(ranks_of(failures()[0]["first"]), ElementsAre(1));
  EXPECT_THAT(failures()[0]["seen"].dump(), HasSubstr("state T, stopped by a signal"));
}

TEST_F(HangTest, AWorkerThatIsStoppedWithinACollectiveIsNamed) {
  auto job = play("0:wait,1:freeze,2:wait", {"--nproc-per-node=3", "--hang-timeout=0.5"});
  EXPECT_EQ(job->wait(), 71) << job->err();
  EXPECT_THAT(ranks_of(failures()[0]["first"]), ElementsAre(1)) << failures().dump(2);
  EXPECT_THAT(job->err(), HasSubstr("hangs: it is stopped in all_reduce of 4096 bytes"));
}

TEST_F(HangTest, WhoIsInAnotherCollectiveThanTheOthersIsNamed) {
  auto job = play("0:wait,1:other,2:wait", {"--nproc-per-node=3", "--hang-timeout=0.5"});
  EXPECT_EQ(job->wait(), 71) << job->err();
  EXPECT_THAT(ranks_of(failures()[0]["first"]), ElementsAre(1)) << failures().dump(2);
  EXPECT_THAT(job->err(),
              HasSubstr("hangs: as collective 9 rank 1 is in all_gather of 4194304 bytes, "
                        "ranks 0,2 are in all_reduce of 4096 bytes (sum of float32)"));
}

TEST_F(HangTest, WhoHasNeverReportedAndWhoWaitsForLongWorkDoNotHang) {
  auto job = play("0:silent,1:late,2:load", {"--nproc-per-node=3", "--hang-timeout=1"});
  EXPECT_EQ(job->wait(), 71) << job->err();
  EXPECT_THAT(ranks_of(failures()[0]["first"]), ElementsAre(2)) << failures().dump(2);
}

// The debugger here attaches, and does nothing until it is killed at the deadline, which is 30 s
// (WorkerInspector::kPatience).
TEST_F(HangTest, ADebuggerThatHangsDoesNotShowInTheStack) {
  std::filesystem::permissions(directory_.write("gdb",
                                                "#!/usr/bin/env python3\n"
                                                "import ctypes, os, sys, time\n"
                                                "pid = int(sys.argv[sys.argv.index('-p') + 1])\n"
                                                "libc = ctypes.CDLL(None, use_errno=True)\n"
                                                "attach = 16\n"
                                                "if libc.ptrace(attach, pid, None, None) == 0:\n"
                                                "  open('attached', 'w').close()\n"
                                                "time.sleep(1000)\n"),
                               std::filesystem::perms::owner_all);
  auto job = start({"--nproc-per-node=2", "--hang-timeout=0.5", "--report-file=report.json",
                    program("hang_worker"), "0:wait,1:load"},
                   {{"PATH", directory_.path() + ":" + std::getenv("PATH")}});
  EXPECT_EQ(job->wait(std::chrono::seconds(55)), 71) << job->err();
  EXPECT_THAT(ranks_of(failures()[0]["first"]), ElementsAre(1)) << failures().dump(2);
  EXPECT_THAT(failures().dump(), Not(HasSubstr("ptrace"))) << failures().dump(2);
  if (!std::filesystem::exists(directory_ / "attached")) GTEST_SKIP() << "it may not be traced";
  if (!read_file("/proc/self/stack").empty()) {  // of the kernel, for whom may see it
    EXPECT_THAT(failures()[0]["first"][0]["frames"].dump(), HasSubstr("pause"));
  }
}

TEST_F(HangTest, EveryNodeIsLookedAtBeforeAnyIsStopped) {
  const HeldPort held;
  const auto node = [&](int rank, const std::string& report) {
    return start({"--nnodes=2", "--node-rank=" + std::to_string(rank), "--nproc-per-node=2",
                  "--rdzv-endpoint=" + held.endpoint(), "--hang-timeout=1",
                  "--report-file=" + report, program("hang_worker"),
                  "0:wait,1:wait,2:load,3:wait"});
  };
  auto first = node(0, "report.json");
  auto second = node(1, "other.json");
  EXPECT_EQ(first->wait(), 71) << first->err();
  EXPECT_EQ(second->wait(), 71) << second->err();
  const json failed = failures()[0];
  EXPECT_THAT(ranks_of(failed["first"]), ElementsAre(2)) << failed.dump(2);
  EXPECT_THAT(failed["seen"].dump(), HasSubstr("ranks 0-1,3: in all_reduce of 4096 bytes"));
  EXPECT_THAT(second->err(), HasSubstr("rank 2 (local rank 0 on "))
      << "the node where it hangs tells it in full";
}

// The agent with the embedded service lives until the other agents have received the end. It
// has no workers to inspect then.
TEST_F(HangTest, NobodyHangsWhoseWorkersSlurmHasEnded) {
  const HeldPort held;
  const auto node = [&](int rank) {
    return Arguments{program("ddprun"),
                     "--nnodes=2",
                     "--node-rank=" + std::to_string(rank),
                     "--rdzv-endpoint=" + held.endpoint(),
                     "--hang-timeout=0.4",
                     "--shutdown-grace=1",  // so long the first node waits for the other's workers
                     "sh",
                     "-c",
                     "echo $$ > worker.$RANK; exec sleep 1000"};
  };
  // The ancestor process with this name counts as Slurm's step manager, which signals agent
  // and workers.
  std::filesystem::create_symlink("/bin/sh", directory_ / "slurmstepd");
  const std::string step =
      "\"$@\" & until [ -e go ]; do sleep 0.02; done; kill -TERM $(cat signalled); wait $!";
  ChildProcess first(joined({directory_ / "slurmstepd", "-c", step, "sh"}, node(0)),
                     environment({{"SLURM_STEP_ID", "0"}}));
  ASSERT_TRUE(first.wait_for_err("1 of 2 nodes here")) << first.err();
  ChildProcess second(node(1), environment());
  for (const char* worker : {"worker.0", "worker.1"}) {
    ASSERT_TRUE(eventually([&] { return !read_file(directory_ / worker).empty(); })) << worker;
  }
  const pid_t guardian = first_child_of(first.pid());
  const pid_t agent = first_child_of(first_child_of(guardian));
  std::ofstream(directory_ / "signalled")
      << guardian << " " << agent << " " << read_file(directory_ / "worker.0");
  const pid_t other_agent = tree_of(second).agent;
  kill(other_agent, SIGSTOP);
  let_go();
  EXPECT_EQ(first.wait(), 128 + SIGTERM) << first.err();
  kill(other_agent, SIGCONT);
  second.wait();
}

// Replaces gdb, which may not be installed. It gets the worker's pid, in a wrapper that waits
// for it.
TEST_F(HangTest, WhereTheWorkerIsIsAskedOfADebugger) {
  const std::string debugger =
      directory_.write("gdb",
                       "#!/bin/sh\n"
                       "for pid; do case $pid in [0-9]*) break;; esac; done\n"
                       "echo '[New LWP 12]'\n"
                       "echo \"#0  0x00007f12 in $(cat /proc/$pid/comm) () from libc.so.6\"\n"
                       "echo '#1  load (path=0x0) at train.cc:12'\n");
  std::filesystem::permissions(debugger, std::filesystem::perms::owner_all);
  auto job = start({"--hang-timeout=0.5", "--report-file=report.json", "sh", "-c",
                    program("hang_worker") + " 0:load; exit 1"},
                   {{"PATH", directory_.path() + ":" + std::getenv("PATH")}});
  EXPECT_EQ(job->wait(), 71) << job->err();
  EXPECT_EQ(failures()[0]["first"][0]["frames"],
            json({"load (path=0x0) at train.cc:12", "hang_worker () from libc.so.6"}));
}

TEST_F(HangTest, StatusTellsStepsOfWorkers) {
  const Variables runtime{{"XDG_RUNTIME_DIR", directory_.path()}};
  auto job = start({"--nproc-per-node=2", program("hang_worker"), "0:wait,1:load"}, runtime);
  ASSERT_TRUE(eventually([&] { return lines_of(job->out()).size() == 2; })) << job->err();
  auto status = start({"status", "--json"}, runtime);
  EXPECT_EQ(status->wait(), 0) << status->err();
  EXPECT_THAT(status->out(), HasSubstr("\"step\":7")) << status->out();
  kill(job->pid(), SIGTERM);
  EXPECT_EQ(job->wait(), 143);
}

// Each generation gets one step further than the one before, and fails there. The budget is
// one.
TEST_F(HangTest, ProgressBetweenFailuresMakesRestartsAvailableAgain) {
  const std::string script =
      "import mmap, os, struct, sys\n"
      "offset, path = os.environ['DDPRUN_WORKER_PAGE'].split('@', 1)\n"
      "file = os.open(path, os.O_RDWR)\n"
      "page = mmap.mmap(file, 4096, offset=int(offset))\n"
      "generation = int(os.environ['DDPRUN_GENERATION'])\n"
      "struct.pack_into('<q', page, 16, min(generation, int(sys.argv[1])))\n"
      "struct.pack_into('<Q', page, 8, 1)\n"
      "sys.exit(0 if generation == 3 else 5)\n";
  directory_.write("train.py", script);
  auto goes_on = start({"--max-restarts=1", "--restart-on-progress", "train.py", "99"});
  EXPECT_EQ(goes_on->wait(), 0) << goes_on->err();
  EXPECT_THAT(goes_on->err(), HasSubstr("succeeded after 3 restarts"));
  auto stuck = start({"--max-restarts=9", "--restart-on-progress", "train.py", "0"});
  EXPECT_EQ(stuck->wait(), 5) << stuck->err();
  EXPECT_THAT(stuck->err(), HasSubstr("not restarted: failed 3 times in a row at step 0"));
  EXPECT_THAT(stuck->err(), HasSubstr("after 2 of 9 restarts in generation 2"));
}

// Generation 0 is killed at step 20, generation 1 does ten steps again and hangs, generation 2
// ends well.
TEST_F(HangTest, TheReportSaysWhereTheTimeWent) {
  const std::string script =
      "import mmap, os, signal, struct, time\n"
      "offset, path = os.environ['DDPRUN_WORKER_PAGE'].split('@', 1)\n"
      "page = mmap.mmap(os.open(path, os.O_RDWR), 4096, offset=int(offset))\n"
      "generation = int(os.environ['DDPRUN_GENERATION'])\n"
      "first = 1 + 10 * generation\n"
      "struct.pack_into('<Qq', page, 72, time.clock_gettime_ns(time.CLOCK_BOOTTIME), first)\n"
      "for step in range(first, first + 20):\n"
      "    struct.pack_into('<q', page, 16, step)\n"
      "    struct.pack_into('<Q', page, 8, step - first + 1)\n"
      "    time.sleep(0.01)\n"
      "if generation == 0: os.kill(os.getpid(), signal.SIGKILL)\n"
      "if generation == 1:\n"
      "    time.sleep(0.1)\n"
      "    struct.pack_into('<Q', page, 88, 100_000_000)\n"
      "    print('hangs', flush=True)\n"
      "    time.sleep(1000)\n";
  directory_.write("train.py", script);
  const Variables runtime{{"XDG_RUNTIME_DIR", directory_.path()}};
  const TimePoint begun = BootClock::now();
  auto job = start(
      {"--max-restarts=2", "--hang-timeout=1", "--report-file=report.json", "train.py"}, runtime);
  ASSERT_TRUE(job->wait_for_out("hangs")) << job->err();
  auto status = start({"status", std::to_string(job->pid())}, runtime);
  EXPECT_EQ(status->wait(), 0) << status->err();
  EXPECT_THAT(status->out(), HasSubstr("  goodput ")) << status->out();
  EXPECT_THAT(status->out(), HasSubstr("restarts (1)")) << status->out();
  EXPECT_EQ(job->wait(), 0) << job->err();
  EXPECT_THAT(job->err(), Not(HasSubstr("goodput"))) << "the job was too short for a line";

  const json times = json::parse(read_file(directory_ / "report.json"))["times"];
  const json& causes = times["causes_ms"];
  EXPECT_EQ(times["restarts"], 2) << times;
  EXPECT_EQ(times["steps_reported"], true);
  EXPECT_EQ(causes["checkpoint"], 100) << times;
  EXPECT_GE(causes["hang"], 900) << times;
  EXPECT_GE(causes["lost_work"], 150) << "about two times ten steps of 10 ms: " << times;
  EXPECT_GE(causes["training"], 350) << times;
  for (const char* some : {"loading", "recovery"}) EXPECT_GT(causes[some], 0) << times;
  EXPECT_EQ(causes["stopped"], 0) << times;
  EXPECT_LE(times["wall_ms"], to_ms(BootClock::now() - begun)) << times;
}

}  // namespace
}  // namespace ddprun::testing_support
