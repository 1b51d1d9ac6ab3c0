// Tests ddprun's reports of failures: on the terminal, and in the file of --report-file.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/exit_codes.h"
#include "rendezvous/protocol/control_codec.h"
#include "tests/integration/rendezvous/service_frame.h"
#include "tests/support/eventually.h"
#include "tests/support/played_service.h"

namespace ddprun::testing_support {
namespace {

using nlohmann::json;
using std::chrono::seconds;
using testing::HasSubstr;

// Begins a worker's line of shell. Rank 1 succeeds at once. Rank 0 waits until ddprun has seen it.
const std::string kOnceRank1HasLeft =
    "[ $RANK = 0 ] || { echo $$ > pid; mv pid left; exit 0; }; "
    "until [ -e left ]; do sleep 0.02; done; "
    "while kill -0 $(cat left) 2>/dev/null; do sleep 0.02; done; ";

class VerdictTest : public LauncherTest {
 protected:
  json report() const { return json::parse(read_file(directory_ / "report.json")); }
};

TEST_F(VerdictTest, EachFailedGenerationIsToldInWordsAndInTheReport) {
  auto job = start_shell({"--nproc-per-node=2", "--max-restarts=1", "--report-file=report.json"},
                         "trap 'exit 0' TERM; [ $RANK = 1 ] || { touch up$DDPRUN_GENERATION; "
                         "while :; do sleep 0.02; done; }; "
                         "until [ -e up$DDPRUN_GENERATION ]; do sleep 0.02; done; "
                         "echo out of luck >&2; exit $((3 + TORCHELASTIC_RESTART_COUNT))");
  ASSERT_EQ(job->wait(), 4) << job->err();
  EXPECT_THAT(job->err(), HasSubstr("generation 0 failed"));
  EXPECT_THAT(job->err(), HasSubstr("exited with code 3"));
  EXPECT_THAT(job->err(), HasSubstr("job 'none' failed after 1 of 1 restarts in generation 1"));
  const json told = report();
  EXPECT_EQ(told["state"], "ended");
  EXPECT_EQ(told["exit_code"], 4);
  EXPECT_EQ(told["exit_code_of"], "worker");
  EXPECT_EQ(told["restarts_used"], 1);
  ASSERT_EQ(told["failed_generations"].size(), 2u);
  for (int generation = 0; generation < 2; ++generation) {
    const json& failed = told["failed_generations"][static_cast<std::size_t>(generation)];
    EXPECT_EQ(failed["generation"], generation);
    ASSERT_EQ(failed["first"].size(), 1u) << failed;
    EXPECT_EQ(failed["first"][0]["kind"], "exit_code");
    EXPECT_EQ(failed["first"][0]["rank"], 1);
    EXPECT_EQ(failed["first"][0]["exit_code"], 3 + generation);
    EXPECT_EQ(failed["first"][0]["stderr"], json({"out of luck"}));
    EXPECT_EQ(failed["victims"].size(), 0u) << "it ended with 0";
  }
}

TEST_F(VerdictTest, AWorkersErrorFileSaysWhatAndWhere) {
  auto job = start_shell(
      {"--report-file=report.json"},
      R"(printf %s '{"message": {"message": "ValueError: boom", "extraInfo": {"py_callstack": )"
      R"("Traceback\n  File \"train.py\", line 3, in main\nValueError: boom"}}}' )"
      R"(> $TORCHELASTIC_ERROR_FILE; exit 1)");
  ASSERT_EQ(job->wait(), 1) << job->err();
  EXPECT_THAT(job->err(), HasSubstr("its message: ValueError: boom"));
  EXPECT_THAT(job->err(), HasSubstr("| File \"train.py\", line 3, in main"));
  const json first = report()["failed_generations"][0]["first"][0];
  EXPECT_EQ(first["kind"], "exception");
  EXPECT_EQ(first["message"], "ValueError: boom");
}

TEST_F(VerdictTest, WhoNamesTheRankThatIsGoneIsItsVictim) {
  // Rank 0 sees rank 1's end, but ddprun sees rank 0 end before rank 1.
  auto job = start_shell({"--nproc-per-node=2", "--report-file=report.json"},
                         "if [ $RANK = 0 ]; then until [ -e up ]; do sleep 0.02; done; "
                         "echo 'rank 1 closed its connection' >&2; exit 9; fi; "
                         "trap '' TERM; touch up; until [ -e go ]; do sleep 0.02; done; exit 5");
  ASSERT_TRUE(job->wait_for_err("exited with code 9"));
  let_go();
  EXPECT_EQ(job->wait(), 9) << "the other one ended when it was told to";
  const json failed = report()["failed_generations"][0];
  EXPECT_EQ(failed["first"][0]["victim_of_rank"], 1);
  ASSERT_EQ(failed["blamed"].size(), 1u);
  EXPECT_EQ(failed["blamed"][0]["stopped_by_ddprun"], true);
  EXPECT_TRUE(failed["victims"].empty());
}

TEST_F(VerdictTest, ARankThatLeavesEarlyWithCode0IsTheFirstFailure) {
  auto job =
      start_shell({"--nproc-per-node=2", "--report-file=report.json"},
                  kOnceRank1HasLeft + "echo 'rank 1 closed its connection' >&2; kill -ABRT $$");
  EXPECT_EQ(job->wait(), 128 + SIGABRT) << job->err();
  EXPECT_THAT(job->err(), HasSubstr("first failure: rank 1 (local rank 1 on "));
  EXPECT_THAT(job->err(), HasSubstr(") exited with code 0 while other ranks still needed it"));
  EXPECT_THAT(job->err(), testing::Not(HasSubstr("an assertion")));
}

TEST_F(VerdictTest, RanksThatRaiseTheSameExceptionAreNoVictims) {
  auto job = start_shell({"--nproc-per-node=2", "--report-file=report.json"},
                         "trap '' TERM; echo ValueError: bad >&2; touch up$RANK; "
                         "until [ -e up$((1 - RANK)) ]; do sleep 0.02; done; "
                         "[ $RANK = 0 ] || sleep 0.3; exit 1");
  EXPECT_EQ(job->wait(), 1) << job->err();
  EXPECT_THAT(job->err(), HasSubstr("failed in the same way:"));
  EXPECT_THAT(job->err(), testing::Not(HasSubstr("victims")));
  EXPECT_EQ(report()["failed_generations"][0]["failed_in_the_same_way"].size(), 1u);
}

TEST_F(VerdictTest, EscapeSequencesOfAnErrorFileDoNotReachTheTerminal) {
  auto job =
      start_shell({}, R"(printf %s '{"message": {"message": "boom \u001b[2J\u001b]0;title\u0007", )"
                      R"("extraInfo": {}}}' > $TORCHELASTIC_ERROR_FILE; exit 1)");
  EXPECT_EQ(job->wait(), 1) << job->err();
  EXPECT_THAT(job->err(), HasSubstr("its message: boom ?[2J?]0;title?"));
  EXPECT_THAT(job->err(), testing::Not(HasSubstr("\x1b")));
}

// A service of another version, or an attacker, may send any bytes.
TEST_F(VerdictTest, EscapeSequencesOfAServiceDoNotReachTheTerminal) {
  const std::string bad = "boom \x1b[2J\x1b]0;title\x07\n\x1b[1A";
  boost::asio::io_context io;
  PlayedService service(io);
  auto job = start_shell(
      {"--nnodes=2", "--rdzv-id=j", "--verbose", "--rdzv-endpoint=" + to_text(service.address())},
      "exit 0");
  ASSERT_TRUE(eventually([&] { return service.has_accepted(); })) << job->err();
  service.say(*encode(ServiceMessage(
      Welcome{.instance = "i", .heartbeat_interval = seconds(1), .agent_patience = seconds(60)})));
  service.say(*encode(ServiceMessage(Wait{.reason = "wait " + bad})));
  service.say(*encode(ServiceMessage(
      End{{.exit_code = 7, .headline = bad, .not_restarted_because = "because " + bad}})));
  EXPECT_EQ(job->wait(), 7) << job->err();
  EXPECT_THAT(job->err(), HasSubstr("failed: boom ?[2J?]0;title??"));
  EXPECT_THAT(job->err(), HasSubstr("ordered to wait: wait boom ?[2J?]0;title??"));
  EXPECT_THAT(job->err(), testing::Not(HasSubstr("\x1b")));
}

TEST_F(VerdictTest, AJobsIdDoesNotLeadOutOfTheLogDirectory) {
  auto job =
      start_shell({"--log-dir=" + (directory_ / "logs"), "--rdzv-id=../out", "-r3"}, "echo x");
  EXPECT_EQ(job->wait(), 0) << job->err();
  std::size_t found = 0;
  for (const auto& entry : std::filesystem::directory_iterator(directory_ / "logs")) {
    EXPECT_TRUE(entry.path().filename().string().starts_with(".._out_")) << entry.path();
    ++found;
  }
  EXPECT_EQ(found, 1u);
}

TEST_F(VerdictTest, WorkersAreEndedBeforeTheirAgentWhereMemoryIsShort) {
  auto job = start_shell({}, "cat /proc/self/oom_score_adj");
  EXPECT_EQ(job->wait(), 0) << job->err();
  const int own = std::stoi(read_file("/proc/self/oom_score_adj"));
  EXPECT_EQ(std::stoi(job->out()), std::min(1000, own + 100));
}

TEST_F(VerdictTest, ACrashThatTookLongerThanItsVictimIsFirst) {
  auto job = start_shell({"--nproc-per-node=2", "--report-file=report.json"},
                         "if [ $RANK = 0 ]; then until [ -e up ]; do sleep 0.02; done; "
                         "echo 'rank 1 is gone' >&2; exit 9; fi; "
                         "trap '' TERM; touch up; until [ -e go ]; do sleep 0.02; done; "
                         "kill -SEGV $$");
  ASSERT_TRUE(job->wait_for_err("exited with code 9"));
  let_go();
  EXPECT_EQ(job->wait(), 128 + 11);
  const json failed = report()["failed_generations"][0];
  EXPECT_EQ(failed["first"][0]["signal_name"], "SIGSEGV");
  ASSERT_EQ(failed["victims"].size(), 1u);
  EXPECT_EQ(failed["victims"][0]["victim_of_rank"], 1);
}

// The same program without ddprun shows whether this machine writes cores.
TEST_F(VerdictTest, SaysWhetherACoreWasDumped) {
  const std::string crash = "ulimit -c $(ulimit -H -c); kill -SEGV $$";
  const pid_t reference = fork();
  if (reference == 0) {
    if (chdir(directory_.path().c_str()) != 0) _exit(1);
    execl("/bin/sh", "sh", "-c", crash.c_str(), nullptr);
    _exit(1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(reference, &status, 0), reference);
  ASSERT_TRUE(WIFSIGNALED(status));
  const bool is_dumped = WCOREDUMP(status) != 0;
  auto job = start_shell({"--report-file=report.json"}, crash);
  EXPECT_EQ(job->wait(), 128 + SIGSEGV);
  EXPECT_EQ(report()["failed_generations"][0]["first"][0]["core_dumped"], is_dumped);
  EXPECT_EQ(job->err().find("was killed by SIGSEGV (core dumped)") != std::string::npos, is_dumped);
  auto without = start_shell({"--report-file=report.json"}, "ulimit -c 0; kill -SEGV $$");
  EXPECT_EQ(without->wait(), 128 + SIGSEGV);
  EXPECT_EQ(report()["failed_generations"][0]["first"][0]["core_dumped"], false);
}

// A control group (v1) of the test itself.
class OwnGroup {
 public:
  OwnGroup(const std::string& controller, const std::string& name)
      : path_("/sys/fs/cgroup/" + controller + "/" + name + "_" + std::to_string(getpid())),
        is_there_(mkdir(path_.c_str(), 0755) == 0) {}
  ~OwnGroup() {
    if (!is_there_) return;
    if (!read_file(file("freezer.state")).empty()) write("freezer.state", "THAWED");
    rmdir(path_.c_str());
  }
  OwnGroup(const OwnGroup&) = delete;
  OwnGroup& operator=(const OwnGroup&) = delete;

  bool is_there() const { return is_there_; }
  std::string file(const std::string& name) const { return path_ + "/" + name; }
  bool write(const std::string& name, const std::string& value) const {
    std::ofstream file(path_ + "/" + name);
    file << value << std::flush;
    return file.good();
  }

 private:
  const std::string path_;
  const bool is_there_;
};

TEST_F(VerdictTest, AWorkerThatTheKernelKilledForWantOfMemoryIsTold) {
  const OwnGroup group("memory", "ddprun_test");
  if (!group.is_there() || !group.write("memory.limit_in_bytes", "67108864")) {
    GTEST_SKIP() << "no control group (v1) for memory can be made here";
  }
  auto job = start_shell({"--nproc-per-node=2", "--report-file=report.json"},
                         "[ $RANK = 1 ] || { while :; do sleep 1; done; }; "
                         "echo $$ > " +
                             group.file("cgroup.procs") + " && exec tail /dev/zero");
  EXPECT_EQ(job->wait(), 128 + SIGKILL) << job->err();
  const json first = report()["failed_generations"][0]["first"][0];
  EXPECT_EQ(first["kind"], "out_of_memory") << job->err();
  EXPECT_EQ(first["rank"], 1);
  EXPECT_THAT(job->err(), HasSubstr("for want of memory"));
  EXPECT_THAT(job->err(), HasSubstr("hint: give it more memory"));
}

// A process in a frozen group takes no signal, like one in an uninterruptible system call.
TEST_F(VerdictTest, WhatCannotBeKilledIsReportedAndTheNodeLeaves) {
  const OwnGroup group("freezer", "ddprun_test");
  if (!group.is_there()) GTEST_SKIP() << "no control group (v1) that freezes can be made here";
  auto job =
      start_shell({"--nproc-per-node=2", "--shutdown-grace=0.1", "--report-file=report.json"},
                  "[ $RANK = 0 ] || { echo $$ > pid1.new; mv pid1.new pid1; exec sleep 1000; }; " +
                      std::string(kUntilGo) + "; exit 3");
  ASSERT_TRUE(eventually([&] { return !read_file(directory_ / "pid1").empty(); }));
  const pid_t frozen = std::stoi(read_file(directory_ / "pid1"));
  // The shell prints its pid before it becomes the program that the report must name.
  const std::string name_of_frozen = "/proc/" + std::to_string(frozen) + "/comm";
  ASSERT_TRUE(eventually([&] { return read_file(name_of_frozen) == "sleep\n"; }));
  ASSERT_TRUE(group.write("cgroup.procs", std::to_string(frozen)));
  ASSERT_TRUE(group.write("freezer.state", "FROZEN"));
  let_go();
  const std::optional<int> code = job->wait(seconds(60));
  EXPECT_TRUE(group.write("freezer.state", "THAWED"));
  EXPECT_EQ(code, to_int(ExitCode::kInternal));
  EXPECT_THAT(job->err(),
              HasSubstr("after SIGKILL pid " + std::to_string(frozen) + " (sleep) is in state D"));
  EXPECT_THAT(job->err(), HasSubstr("first failure: rank 0"));
  const json told = report();
  EXPECT_EQ(told["exit_code_of"], "ddprun");
  EXPECT_EQ(told["failed_generations"][0]["first"][0]["exit_code"], 3);
  EXPECT_TRUE(eventually([&] { return kill(frozen, 0) != 0; })) << "the signal waited for it";
}

TEST_F(VerdictTest, AFinalExitCodeIsNotRestarted) {
  auto job =
      start_shell({"--max-restarts=5", "--no-restart-on=3", "--report-file=report.json"}, "exit 3");
  ASSERT_EQ(job->wait(), 3);
  EXPECT_THAT(job->err(), HasSubstr("not restarted: exit code 3 is one of --no-restart-on"));
  EXPECT_EQ(report()["restarts_used"], 0);
}

TEST_F(VerdictTest, QuickFailuresArePausedFor) {
  auto job = start_shell({"--max-restarts=2"}, "exit 3");
  ASSERT_EQ(job->wait(), 3);
  EXPECT_THAT(job->err(), HasSubstr("the workers fail within seconds of each start: the next one "
                                    "comes after a pause of 500 ms"));
}

TEST_F(VerdictTest, AWorkersTwoIsToldFromOurs) {
  auto worker = start_shell({"--report-file=report.json"}, "exit 2");
  ASSERT_EQ(worker->wait(), 2);
  EXPECT_EQ(report()["exit_code_of"], "worker");
  auto usage = start({"--report-file=report.json", "./no-such-program"});
  ASSERT_EQ(usage->wait(), 2);
  EXPECT_EQ(report()["exit_code_of"], "ddprun");
  EXPECT_EQ(report()["kind"], "start_failure");
  EXPECT_THAT(report()["what"].get<std::string>(), HasSubstr("./no-such-program"));
}

TEST_F(VerdictTest, AReportSaysThatTheJobRunsUntilItHasEnded) {
  auto job = start_shell({"--report-file=report.json"}, until_go_after("echo runs"));
  ASSERT_TRUE(job->wait_for_out("runs"));
  EXPECT_EQ(report()["state"], "running");
  job->signal(SIGTERM);
  EXPECT_EQ(job->wait(), 143);
  EXPECT_EQ(report()["state"], "ended");
  EXPECT_EQ(report()["exit_code_of"], "signal");
  EXPECT_EQ(report()["kind"], "stop_on_request");
  EXPECT_EQ(report()["what"], "ddprun received SIGTERM");
}

TEST_F(VerdictTest, AReportThatCannotBeWrittenIsSaidBeforeAnythingStarts) {
  auto job = start_shell({"--report-file=no/such/report.json"}, "touch started");
  EXPECT_EQ(job->wait(), 73);
  EXPECT_THAT(job->err(), HasSubstr("--report-file: write no/such/report.json: No such file"));
  EXPECT_FALSE(std::filesystem::exists(directory_ / "started"));
}

TEST_F(VerdictTest, TheCommandsForTheEndGetTheReportAndChangeNothing) {
  auto job = start_shell({"--on-failure=echo failed > order; echo noise; exit 9",
                          "--on-end=cat > end.json; echo \"$DDPRUN_HEADLINE\" >> order"},
                         "exit 3");
  EXPECT_EQ(job->wait(), 3) << job->err();
  EXPECT_EQ(job->out(), "") << "stdout is the job's";
  EXPECT_THAT(job->err(), HasSubstr("noise\n"));
  EXPECT_THAT(job->err(), HasSubstr("ddprun: warning: --on-failure: it ended with exit code 9"));
  EXPECT_THAT(read_file(directory_ / "order"),
              testing::StartsWith("failed\njob 'none' failed with exit code 3: rank 0 "));
  const json report = json::parse(read_file(directory_ / "end.json"));
  EXPECT_EQ(report["exit_code"], 3);
  EXPECT_EQ(report["times"]["restarts"], 0);

  auto good =
      start_shell({"--on-failure=touch never", "--on-end=echo \"$DDPRUN_HEADLINE\""}, "true");
  EXPECT_EQ(good->wait(), 0) << good->err();
  EXPECT_THAT(good->err(), HasSubstr("job 'none' succeeded: every worker ended with 0\n"));
  EXPECT_FALSE(std::filesystem::exists(directory_ / "never"));
}

// --- of several nodes ---

class NodesVerdictTest : public ServiceTest {
 protected:
  // Starts two nodes of a service with this lease. Their reports are report0.json and report1.json.
  void begin_nodes(const std::string& script, const char* lease = "--lease=60",
                   const char* nodes = "--nnodes=2") {
    service_flags_ = {lease};
    ASSERT_NO_FATAL_FAILURE(start_service());
    for (const char* rank : {"0", "1"}) {
      nodes_.push_back(
          start_shell({nodes, std::string("--node-rank=") + rank, "--rdzv-endpoint=" + address_,
                       std::string("--report-file=report") + rank + ".json",
                       std::string("--on-end=echo node ") + rank + " >> told"},
                      script));
    }
  }
  json report_of(int node) const {
    return json::parse(read_file(directory_ / ("report" + std::to_string(node) + ".json")));
  }
  std::vector<std::unique_ptr<ChildProcess>> nodes_;
};

TEST_F(NodesVerdictTest, EachNodesOwnFileTellsTheEnd) {
  begin_nodes("exit $((4 * RANK))");
  for (const auto& node : nodes_) EXPECT_EQ(node->wait(), 4) << node->err();
  for (const int node : {0, 1}) {
    EXPECT_EQ(report_of(node)["state"], "ended") << node;
    EXPECT_EQ(report_of(node)["failed_generations"][0]["first"][0]["rank"], 1) << node;
  }
  EXPECT_EQ(read_file(directory_ / "told"), "node 0\n") << "--on-end runs once for the job";
}

TEST_F(NodesVerdictTest, ANodeThatLeavesAnElasticJobRunsNoCommandForItsEnd) {
  begin_nodes("echo up $WORLD_SIZE; until [ -e done ]; do sleep 0.05; done", "--lease=60",
              "--nnodes=1:2");
  for (const auto& node : nodes_) ASSERT_TRUE(node->wait_for_out("up 2")) << node->err();
  nodes_[0]->signal(SIGTERM);
  EXPECT_EQ(nodes_[0]->wait(), 128 + SIGTERM) << nodes_[0]->err();
  ASSERT_TRUE(nodes_[1]->wait_for_out("up 1")) << nodes_[1]->err();
  EXPECT_FALSE(std::filesystem::exists(directory_ / "told"));
  std::ofstream(directory_ / "done").close();
  EXPECT_EQ(nodes_[1]->wait(), 0) << nodes_[1]->err();
  EXPECT_EQ(read_file(directory_ / "told"), "node 1\n");
}

TEST_F(NodesVerdictTest, ARankOfAnotherNodeThatLeavesEarlyWithCode0IsTheFirstFailure) {
  begin_nodes(kOnceRank1HasLeft + "echo 'rank 1 closed its connection' >&2; kill -ABRT $$");
  for (const auto& node : nodes_) {
    EXPECT_EQ(node->wait(), 128 + SIGABRT) << node->err();
    EXPECT_THAT(node->err(), HasSubstr("first failure: rank 1 (local rank 0 on "));
    EXPECT_THAT(node->err(), HasSubstr(") exited with code 0 while other ranks still needed it"));
    EXPECT_THAT(node->err(), testing::Not(HasSubstr("an assertion")));
  }
  EXPECT_EQ(report_of(0)["failed_generations"][0]["victims"][0]["victim_of_rank"], 1);
}

// The node that would have written the report is gone.
TEST_F(NodesVerdictTest, TheLossOfTheFirstNodeIsReportedByTheOther) {
  begin_nodes("echo up; exec sleep 1000", "--lease=3");
  ASSERT_TRUE(nodes_[0]->wait_for_out("up") && nodes_[1]->wait_for_out("up"));
  kill_guards(tree_of(*nodes_[0]), {1});  // the keeper clears up
  EXPECT_EQ(nodes_[1]->wait(), 68) << nodes_[1]->err();
  EXPECT_EQ(report_of(1)["kind"], "lease_lost");
  EXPECT_EQ(read_file(directory_ / "told"), "node 1\n");
  EXPECT_EQ(report_of(1)["failed_generations"][0]["first"][0]["node_rank"], 0);
  nodes_[0]->wait();
}

}  // namespace
}  // namespace ddprun::testing_support
