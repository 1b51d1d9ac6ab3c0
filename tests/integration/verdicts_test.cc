// What ddprun tells of failures: on the terminal, and in the file of --report-file.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/integration/service_frame.h"

namespace ddprun::testing_support {
namespace {

using nlohmann::json;
using testing::HasSubstr;

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
      R"(printf %s '{"message": {"message": "ValueError: boom", "extraInfo": {"py_callstack": "Traceback\n  File \"train.py\", line 3, in main\nValueError: boom"}}}' > $TORCHELASTIC_ERROR_FILE; exit 1)");
  ASSERT_EQ(job->wait(), 1) << job->err();
  EXPECT_THAT(job->err(), HasSubstr("it said: ValueError: boom"));
  EXPECT_THAT(job->err(), HasSubstr("| File \"train.py\", line 3, in main"));
  const json first = report()["failed_generations"][0]["first"][0];
  EXPECT_EQ(first["kind"], "exception");
  EXPECT_EQ(first["message"], "ValueError: boom");
}

TEST_F(VerdictTest, WhoNamesTheRankThatIsGoneIsItsVictim) {
  // Rank 0 sees rank 1's end, and is itself seen to end before it.
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

// Whether this machine writes cores is what the kernel says of the same program without ddprun.
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
  EXPECT_THAT(job->err(),
              HasSubstr("the workers fail within seconds of each start: the next one is after a "
                        "pause of 500 ms"));
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
  EXPECT_EQ(report()["what"], "ddprun was told to end by SIGTERM");
}

TEST_F(VerdictTest, AReportThatCannotBeWrittenIsSaidBeforeAnythingStarts) {
  auto job = start_shell({"--report-file=no/such/report.json"}, "touch started");
  EXPECT_EQ(job->wait(), 73);
  EXPECT_THAT(job->err(), HasSubstr("--report-file: write no/such/report.json: No such file"));
  EXPECT_FALSE(std::filesystem::exists(directory_ / "started"));
}

// --- of several nodes ---

class NodesVerdictTest : public ServiceTest {
 protected:
  // The nodes' reports are report0.json and report1.json.
  void begin_nodes(const std::string& script) {
    service_flags_ = {"--lease=1"};
    ASSERT_NO_FATAL_FAILURE(start_service());
    for (const char* rank : {"0", "1"}) {
      nodes_.push_back(start_shell(
          {"--nnodes=2", std::string("--node-rank=") + rank, "--rdzv-endpoint=" + address_,
           std::string("--report-file=report") + rank + ".json"},
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
}

// Who would have written it is gone.
TEST_F(NodesVerdictTest, TheLossOfTheFirstNodeIsReportedByTheOther) {
  begin_nodes("echo up; exec sleep 1000");
  ASSERT_TRUE(nodes_[0]->wait_for_out("up") && nodes_[1]->wait_for_out("up"));
  kill_guards(tree_of(*nodes_[0]), {1});  // the keeper clears up
  EXPECT_EQ(nodes_[1]->wait(), 68) << nodes_[1]->err();
  EXPECT_EQ(report_of(1)["kind"], "lease_lost");
  EXPECT_EQ(report_of(1)["failed_generations"][0]["first"][0]["node_rank"], 0);
  nodes_[0]->wait();
}

}  // namespace
}  // namespace ddprun::testing_support
