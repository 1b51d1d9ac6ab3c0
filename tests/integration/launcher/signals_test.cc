// Tests signals that end nothing, and the signal that asks for a checkpoint, with real
// processes.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <ctime>
#include <fstream>

#include "base/process_stat.h"
#include "base/small_file.h"
#include "tests/integration/launcher/launcher_frame.h"
#include "tests/support/held_port.h"

namespace ddprun::testing_support {
namespace {

using testing::HasSubstr;

bool is_stopped(pid_t pid) {
  const std::optional<ProcessStat> stat = process_stat(pid);
  return stat && stat->state == 'T';
}

TEST_F(LauncherTest, SignalsForTheWorkersReachThemAndEndNothing) {
  auto job = start_shell({"--nproc-per-node=2"},
                         "trap 'echo got USR1' USR1; trap 'echo got USR2' USR2; echo ready; "
                         "until [ -e go ]; do sleep 0.02; done");
  ASSERT_TRUE(job->wait_for_out("[rank 0] ready") && job->wait_for_out("[rank 1] ready"));
  job->signal(SIGUSR1);
  EXPECT_TRUE(job->wait_for_out("[rank 0] got USR1") && job->wait_for_out("[rank 1] got USR1"));
  job->signal(SIGUSR2);
  EXPECT_TRUE(job->wait_for_out("[rank 0] got USR2") && job->wait_for_out("[rank 1] got USR2"));
  let_go();
  EXPECT_EQ(job->wait(), 0) << job->err();
}

// A worker that waits for let_go() and starts no process. A shell that is stopped between its
// vfork and the child's exec does not show as stopped.
constexpr const char* kWaits = R"(
import os, time
print("ready", flush=True)
while not os.path.exists("go"): time.sleep(0.02)
)";

TEST_F(LauncherTest, CtrlZStopsTheWorkersAndWhatTheShellWaitsForButNotTheAgent) {
  auto job = start({directory_.write("waits.py", kWaits)});
  ASSERT_TRUE(job->wait_for_out("ready"));
  const Tree tree = tree_of(*job);
  job->signal(SIGTSTP);
  EXPECT_TRUE(eventually([&] { return is_stopped(tree.worker) && is_stopped(tree.guardian); }));
  EXPECT_FALSE(is_stopped(tree.agent) || is_stopped(tree.keeper));
  let_go();
  job->signal(SIGCONT);
  EXPECT_EQ(job->wait(), 0) << job->err();
}

TEST_F(LauncherTest, AStoppedJobCanBeToldToEnd) {
  auto job = start({directory_.write("waits.py", kWaits)});
  ASSERT_TRUE(job->wait_for_out("ready"));
  const Tree tree = tree_of(*job);
  job->signal(SIGTSTP);
  ASSERT_TRUE(eventually([&] { return is_stopped(tree.worker) && is_stopped(tree.guardian); }));
  job->signal(SIGTERM);  // as a shell does to a stopped job: the signal, then SIGCONT
  job->signal(SIGCONT);
  EXPECT_EQ(job->wait(), 143);
}

// A program without ddprun's library. It takes the signal when it is ready for it.
constexpr const char* kSaves = R"(
import os, signal, sys, time
asked = []
signal.signal(signal.SIGUSR1, lambda *_: asked.append(1))
while not os.path.exists("listen"): time.sleep(0.01)
signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1})
print("listens", flush=True)
while not asked: time.sleep(0.01)
open("saved-" + os.environ["RANK"], "w").close()
)";

TEST_F(LauncherTest, AskedToSaveWorkersThatEndWellMakeTheJobOneToBeStartedAgain) {
  std::ofstream(directory_ / "saves.py") << kSaves;
  auto job =
      start({"--nproc-per-node=2", "--checkpoint-signal=USR1", "--max-restarts=3", "saves.py"});
  ASSERT_TRUE(eventually([&] { return first_child_of(tree_of(*job).keeper) > 0; }));
  // The request comes before the program listens, and twice. It is one request, and it is not
  // lost.
  ASSERT_TRUE(eventually([&] { return tree_of(*job).worker > 0; }));
  job->signal(SIGUSR1);
  ASSERT_TRUE(job->wait_for_err("to save and exit"));
  job->signal(SIGUSR1);
  std::ofstream(directory_ / "listen") << "";
  EXPECT_EQ(job->wait(), 75) << job->err();
  EXPECT_TRUE(std::filesystem::exists(directory_ / "saved-0"));
  EXPECT_TRUE(std::filesystem::exists(directory_ / "saved-1"));
}

// A restart must not forget the request: a job that is to be preempted has to save. The sender
// does not ask again.
TEST_F(LauncherTest, ARequestToSaveHoldsForTheGenerationAfterAFailure) {
  const std::string fails_first =
      directory_.write("fails_first.py",
                       "import os, sys\nif os.environ['TORCHELASTIC_RESTART_COUNT'] == '0':\n"
                       "  while not os.path.exists('listen'): pass\n  sys.exit(4)\n" +
                           std::string(kSaves));
  auto job =
      start({"--nproc-per-node=2", "--checkpoint-signal=USR1", "--max-restarts=1", fails_first});
  ASSERT_TRUE(eventually([&] { return tree_of(*job).worker > 0; }));
  job->signal(SIGUSR1);
  ASSERT_TRUE(job->wait_for_err("to save and exit"));
  std::ofstream(directory_ / "listen") << "";
  EXPECT_EQ(job->wait(), 75) << job->err();
  EXPECT_TRUE(std::filesystem::exists(directory_ / "saved-0"));
  EXPECT_TRUE(std::filesystem::exists(directory_ / "saved-1"));
}

// A preemptor takes one node of two. Both have to be started again.
TEST_F(LauncherTest, ARequestToSaveThatOneNodeGetsCountsForTheJob) {
  const HeldPort held;
  const std::string saves =
      directory_.write("saves.py",
                       "import os, threading\n"
                       "def follow():\n  while not os.path.exists('saved-1'): pass\n  os._exit(0)\n"
                       "if os.environ['RANK'] == '0': threading.Thread(target=follow).start()\n" +
                           std::string(kSaves));
  std::vector<std::unique_ptr<ChildProcess>> nodes;
  for (const char* rank : {"0", "1"}) {
    nodes.push_back(
        start({"--nnodes=2", std::string("--node-rank=") + rank,
               "--rdzv-endpoint=" + held.endpoint(), "--checkpoint-signal=USR1", saves}));
  }
  std::ofstream(directory_ / "listen") << "";
  ASSERT_TRUE(nodes[0]->wait_for_out("listens") && nodes[1]->wait_for_out("listens"));
  nodes[1]->signal(SIGUSR1);
  for (const auto& node : nodes) EXPECT_EQ(node->wait(), 75) << node->err();
}

TEST_F(LauncherTest, AWorkerThatDiesOfTheRequestIsNotRestarted) {
  std::ofstream(directory_ / "listen") << "";
  std::ofstream(directory_ / "dies.py")
      << "import signal\nsignal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1})\n"
         "print('ready', flush=True)\nwhile True: signal.pause()\n";
  auto job = start({"--checkpoint-signal=USR1", "--max-restarts=3", "dies.py"});
  ASSERT_TRUE(job->wait_for_out("ready"));
  job->signal(SIGUSR1);
  EXPECT_EQ(job->wait(), 128 + SIGUSR1) << job->err();
}

// Reports step 7, as docs/how-to/hangs.md shows.
constexpr const char* kReportsStep = R"(
import mmap, os, struct
offset, path = os.environ["DDPRUN_WORKER_PAGE"].split("@", 1)
file = os.open(path, os.O_RDWR)
page = mmap.mmap(file, 4096, offset=int(offset))
struct.pack_into("<q", page, 16, 7)
struct.pack_into("<Q", page, 8, 1)
)";

// In a job of Slurm whose commands are scripts: squeue prints the time left or the comment, and
// scontrol notes its arguments. The commands of Slurm itself are in slurm_test.sh.
class TimeLimitTest : public LauncherTest {
 protected:
  TimeLimitTest() {
    write_command("squeue",
                  "left=$(($(cat end) - $(date +%s)))\n[ $left -ge 0 ] || left=0\n"
                  "case $* in\n  *--jobs=812*%L*) echo 0:$left;;\n  *--jobs=812*%T*) cat job;;\n"
                  "esac\n");
    write_command("scontrol", "echo \"$*\" >>calls\ncat refusal 2>/dev/null && exit 1\nexit 0\n");
    directory_.write("end", std::to_string(std::time(nullptr) + 4));
    directory_.write("job", "RUNNING|(null)\n");
    directory_.write("saves.py", kSaves);
    directory_.write("listen", "");
  }
  void write_command(const std::string& name, const std::string& script) {
    const std::string path =
        directory_.write(name, "#!/bin/sh\ncd '" + directory_.path() + "'\n" + script);
    std::filesystem::permissions(path, std::filesystem::perms::owner_all);
  }
  std::unique_ptr<ChildProcess> start_job(const Arguments& options, Variables more = {}) {
    Variables variables{{"SLURM_JOB_ID", "812"},
                        {"PATH", directory_.path() + ":" + std::getenv("PATH")}};
    variables.insert(variables.end(), more.begin(), more.end());
    return start(joined(options, {"--nproc-per-node=2"}, {"saves.py"}), variables);
  }
  std::string scontrol_calls() { return text_of(directory_ / "calls"); }
};

TEST_F(TimeLimitTest, WorkersSaveBeforeItAndTheJobIsRequeued) {
  auto job = start_job({"--requeue=2"}, {{"SLURM_RESTART_COUNT", "1"}});
  EXPECT_EQ(job->wait(), 75) << job->err();
  EXPECT_THAT(job->err(), HasSubstr("the time limit of Slurm job 812 is near"));
  EXPECT_THAT(job->err(), HasSubstr("SIGUSR1: asking 2 workers to save and exit"));
  EXPECT_THAT(job->err(), HasSubstr("Slurm job 812 is requeued (2 of --requeue=2)"));
  EXPECT_TRUE(std::filesystem::exists(directory_ / "saved-1"));
  EXPECT_EQ(scontrol_calls(), "requeue 812\n");
}

// squeue would show nothing of a job that the user's variables do not select.
TEST_F(TimeLimitTest, VariablesThatSelectJobsHideNothing) {
  write_command("squeue",
                "[ -z \"$SQUEUE_STATES$SQUEUE_USERS$SLURM_CLUSTERS\" ] || exit 0\n"
                "case $* in\n  *%L*) echo 0:00;;\n  *) cat job;;\nesac\n");
  write_command("scontrol", "echo \"$* $SLURM_CLUSTERS\" >>calls\n");
  auto job = start_job(
      {"--requeue=2"},
      {{"SQUEUE_STATES", "PENDING"}, {"SQUEUE_USERS", "root"}, {"SLURM_CLUSTERS", "other"}});
  EXPECT_EQ(job->wait(), 75) << job->err();
  EXPECT_THAT(job->err(), HasSubstr("the time limit of Slurm job 812 is near"));
  EXPECT_EQ(scontrol_calls(), "requeue 812 \n");
}

TEST_F(TimeLimitTest, WithoutRequeueTheExitCodeSaysThatItWasSaved) {
  auto job = start_job({"--save-before-end=1"});
  EXPECT_EQ(job->wait(), 75) << job->err();
  EXPECT_EQ(scontrol_calls(), "");
}

TEST_F(TimeLimitTest, AJobThatWasRequeuedOftenEnoughIsNotRequeued) {
  auto job = start_job({"--requeue=2"}, {{"SLURM_RESTART_COUNT", "2"}});
  EXPECT_EQ(job->wait(), 75) << job->err();
  EXPECT_THAT(job->err(), HasSubstr("Slurm job 812 is not requeued: it was requeued 2 times, of "
                                    "--requeue=2"));
  EXPECT_EQ(scontrol_calls(), "");
}

TEST_F(TimeLimitTest, WhatSlurmRefusesIsSaid) {
  directory_.write("refusal", "Only batch jobs are accepted or processed\n");
  auto job = start_job({"--requeue=2"});
  EXPECT_EQ(job->wait(), 75) << job->err();
  EXPECT_THAT(job->err(), HasSubstr("scontrol requeue 812: Only batch jobs are accepted or "
                                    "processed; the job was saved: start it again by hand"));
}

TEST_F(TimeLimitTest, ARequeueThatEndsScontrolBeforeItsAnswerIsSeen) {
  write_command("scontrol", "echo 'COMPLETING|(null)' >job\nkill -TERM $$\n");
  auto job = start_job({"--requeue=2"});
  EXPECT_EQ(job->wait(), 75) << job->err();
  EXPECT_THAT(job->err(), HasSubstr("Slurm job 812 is requeued (1 of --requeue=2)"));
}

TEST_F(TimeLimitTest, AnScontrolThatEndsWithoutARequeueIsAnError) {
  write_command("scontrol", "kill -TERM $$\n");
  auto job = start_job({"--requeue=2"});
  EXPECT_EQ(job->wait(), 75) << job->err();
  EXPECT_THAT(job->err(), HasSubstr("scontrol requeue 812: no answer"));
}

TEST_F(TimeLimitTest, SigtermAsksForASaveAndDoesNotRequeue) {
  write_command("squeue", "echo UNLIMITED\n");
  auto job = start_job({"--requeue=2"});
  ASSERT_TRUE(job->wait_for_out("[rank 0] listens") && job->wait_for_out("[rank 1] listens"));
  job->signal(SIGTERM);
  EXPECT_EQ(job->wait(), 75) << job->err();
  EXPECT_THAT(job->err(), HasSubstr("SIGTERM: the workers have 10.0 s to save"));
  EXPECT_THAT(job->err(), HasSubstr("not requeued by ddprun: Slurm is ending it (SIGTERM came)"));
  EXPECT_TRUE(std::filesystem::exists(directory_ / "saved-0"));
  EXPECT_EQ(scontrol_calls(), "");
}

TEST_F(TimeLimitTest, SigtermInAPodAsksForASave) {
  auto job = start({"--nproc-per-node=2", "--checkpoint-signal=USR1", "saves.py"},
                   {{"KUBERNETES_SERVICE_HOST", "10.96.0.1"}});
  ASSERT_TRUE(job->wait_for_out("[rank 0] listens") && job->wait_for_out("[rank 1] listens"));
  job->signal(SIGTERM);
  EXPECT_EQ(job->wait(), 75) << job->err();
  EXPECT_THAT(job->err(), HasSubstr("SIGTERM: the workers have 30.0 s to save"));
  EXPECT_TRUE(std::filesystem::exists(directory_ / "saved-1"));
}

TEST_F(TimeLimitTest, AJobThatSlurmIsEndingIsNotRequeued) {
  directory_.write("job", "COMPLETING|(null)\n");
  auto job = start_job({"--requeue=2"});
  EXPECT_EQ(job->wait(), 75) << job->err();
  EXPECT_THAT(job->err(), HasSubstr("not requeued by ddprun: Slurm is ending it (COMPLETING)"));
  EXPECT_EQ(scontrol_calls(), "");
}

TEST_F(TimeLimitTest, ATaskOfAnArrayIsNamedByItsIndex) {
  write_command("squeue",
                "case $* in\n  *--jobs=812_3\\ *%L*) echo 0:00;;\n"
                "  *--jobs=812_3\\ *%T*) echo 'RUNNING|mine';;\nesac\n");
  auto job =
      start_job({"--requeue=2"}, {{"SLURM_ARRAY_JOB_ID", "812"}, {"SLURM_ARRAY_TASK_ID", "3"}});
  EXPECT_EQ(job->wait(), 75) << job->err();
  EXPECT_EQ(scontrol_calls(), "requeue 812_3\n");
}

// sbatch in the task passes its variables on.
TEST_F(TimeLimitTest, AJobThatATaskOfAnArraySubmittedIsRequeuedItself) {
  auto job =
      start_job({"--requeue=2"}, {{"SLURM_ARRAY_JOB_ID", "811"}, {"SLURM_ARRAY_TASK_ID", "3"}});
  EXPECT_EQ(job->wait(), 75) << job->err();
  EXPECT_EQ(scontrol_calls(), "requeue 812\n");
}

TEST_F(TimeLimitTest, WithoutAnAnswerTheLimitOfTheEnvironmentCounts) {
  write_command("squeue", "echo 'squeue: error' >&2\nexit 1\n");
  auto job =
      start_job({"--requeue=2"}, {{"SLURM_JOB_END_TIME", std::to_string(std::time(nullptr) + 4)}});
  EXPECT_EQ(job->wait(), 75) << job->err();
  EXPECT_EQ(scontrol_calls(), "requeue 812\n");
}

TEST_F(TimeLimitTest, AnAnswerOverridesTheLimitOfTheEnvironment) {
  auto job = start_job({"--save-before-end=1"}, {{"SLURM_JOB_END_TIME", "1"}});
  ASSERT_TRUE(job->wait_for_out("[rank 1] listens"));
  EXPECT_EQ(job->err(), "") << "is not over";
  EXPECT_EQ(job->wait(), 75) << job->err();
}

TEST_F(TimeLimitTest, TheStepStandsInTheComment) {
  directory_.write("job", "RUNNING|for the paper\n");
  directory_.write("saves.py", "import os\n" + std::string(kReportsStep) + kSaves);
  auto job = start_job({"--requeue=2"});
  EXPECT_EQ(job->wait(), 75) << job->err();
  EXPECT_EQ(scontrol_calls(),
            "update JobId=812 Comment=for the paper ddprun: step 7\nrequeue 812\n");
}

TEST_F(TimeLimitTest, AJobThatEndsBeforeItDoesNotWaitForSlurm) {
  write_command("squeue", "touch asked\nexec sleep 1000\n");
  auto job = start_job({"--save-before-end=1"});
  ASSERT_TRUE(eventually([&] { return std::filesystem::exists(directory_ / "asked"); }));
  const auto before = std::chrono::steady_clock::now();
  job->signal(SIGUSR1);
  EXPECT_EQ(job->wait(), 75) << job->err();
  EXPECT_LT(std::chrono::steady_clock::now() - before, std::chrono::seconds(8));
}

// The spare is on the first node of the Slurm job, so it watches the time limit. The worker that
// saves gives it time to requeue the job too early.
TEST_F(TimeLimitTest, ASpareOnTheFirstNodeWaitsUntilTheOthersHaveSaved) {
  ChildProcess service({program("ddp-rendezvous"), "--listen=127.0.0.1:0"}, environment());
  const Arguments job{"--rdzv-endpoint=" + listening_address(service), "--rdzv-id=job",
                      "--nnodes=1", "--requeue=2"};
  const Variables first{{"SLURM_JOB_ID", "812"},
                        {"SLURM_NODEID", "0"},
                        {"PATH", directory_.path() + ":" + std::getenv("PATH")}};
  const Variables second{{"SLURM_JOB_ID", "812"}, {"SLURM_NODEID", "1"}};
  auto trainer = start_shell(job,
                             "trap 'for i in $(seq 60); do [ -e calls ] || sleep 0.02; done; "
                             "[ -e calls ] || touch saved; exit 0' USR1; "
                             "echo listens; while :; do sleep 0.02; done",
                             second);
  ASSERT_TRUE(trainer->wait_for_out("listens")) << trainer->err();
  auto spare = start_shell(job, "exit 1", first);
  EXPECT_EQ(spare->wait(), 75) << spare->err();
  EXPECT_EQ(trainer->wait(), 75) << trainer->err();
  EXPECT_TRUE(std::filesystem::exists(directory_ / "saved")) << spare->err();
  EXPECT_EQ(scontrol_calls(), "requeue 812\n");
  service.signal(SIGTERM);
  EXPECT_EQ(service.wait(), 0) << service.err();
}

TEST_F(TimeLimitTest, ANodeThatStillWaitsForOthersRequeuesTheJob) {
  const HeldPort held;
  auto job = start_job({"--requeue=2", "--rdzv-endpoint=" + held.endpoint(), "--nnodes=2"},
                       {{"SLURM_NODEID", "0"}});
  EXPECT_EQ(job->wait(), 75) << job->err();
  EXPECT_EQ(scontrol_calls(), "requeue 812\n");
}

TEST_F(TimeLimitTest, OutsideOfSlurmItIsSaidThatThereIsNone) {
  auto job = start({"--requeue=2", "true"});
  EXPECT_EQ(job->wait(), 0) << job->err();
  EXPECT_THAT(job->err(), HasSubstr("--requeue has no effect: this is not a job of Slurm"));
}

}  // namespace
}  // namespace ddprun::testing_support
