// Tests --hang-timeout, the search for slow ranks, and crashes at the end, with programs of the
// worker library: their collectives, steps and ends in the worker page.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <regex>

#include "tests/integration/launcher/launcher_frame.h"
#include "tests/support/eventually.h"
#include "tests/support/held_port.h"
#include "tests/support/http_get.h"
#include "tests/support/whole.h"

namespace ddprun::testing_support {
namespace {

using nlohmann::json;
using testing::HasSubstr;

class WorkerHangTest : public LauncherTest {
 protected:
  // The real gdb takes seconds to read LibTorch's symbols. hang_test has its output.
  WorkerHangTest() {
    std::filesystem::permissions(directory_.write("gdb", "#!/bin/sh\n"),
                                 std::filesystem::perms::owner_all);
  }
  std::unique_ptr<ChildProcess> play(const std::string& name) const {
    return start({"--nproc-per-node=3", "--hang-timeout=1", "--max-restarts=1",
                  "--report-file=report.json", program("worker_test_rank"), name},
                 {{"PATH", directory_.path() + ":" + std::getenv("PATH")}});
  }
  json failures() const {
    return json::parse(read_file(directory_ / "report.json"))["failed_generations"];
  }
};

TEST_F(WorkerHangTest, TheRankThatDoesNotComeIsNamedWithTheCollective) {
  for (const char* name : {"hang", "hang_async"}) {
    auto job = play(name);
    ASSERT_EQ(job->wait(), 0) << job->err();
    ASSERT_EQ(failures().size(), 1u) << name;
    const json first = failures()[0]["first"];
    ASSERT_EQ(first.size(), 1u) << failures().dump(2);
    EXPECT_EQ(first[0]["rank"], 1);
    EXPECT_EQ(first[0]["step"], 3);
    EXPECT_THAT(first[0]["message"].get<std::string>(),
                HasSubstr("it has not come to all_reduce of 16 bytes (sum of float32) (collective "
                          "4), where ranks 0,2 have waited 1."));
  }
}

// PyTorch's own destructors may abort a process at its exit, when its training is done.
TEST_F(WorkerHangTest, ACrashUsesNoRestartOnceTheContextWasDestroyedInGoodOrder) {
  auto job = play("abort_afterwards");
  EXPECT_EQ(job->wait(), 128 + SIGABRT) << job->err();
  EXPECT_THAT(job->err(), HasSubstr("not restarted: its training is done"));
  ASSERT_EQ(failures().size(), 1u);
  EXPECT_EQ(failures()[0]["first"][0]["rank"], 1) << failures().dump(2);
  EXPECT_EQ(failures()[0]["first"][0]["after_context"], true) << failures().dump(2);
}

TEST_F(WorkerHangTest, ACrashWhileTheContextLivesUsesARestart) {
  auto job = play("abort_within");
  EXPECT_EQ(job->wait(), 0) << job->err();
  ASSERT_EQ(failures().size(), 1u) << job->err();
  EXPECT_EQ(failures()[0]["first"][0]["rank"], 1) << failures().dump(2);
  EXPECT_EQ(failures()[0]["first"][0]["signal_name"], "SIGABRT");
  EXPECT_FALSE(failures()[0]["first"][0].value("after_context", false));
}

TEST_F(WorkerHangTest, WhoWaitsForARankThatWorksAloneDoesNotHang) {
  auto job = play("work_alone");
  EXPECT_EQ(job->wait(), 0) << job->err();
  EXPECT_EQ(failures().size(), 0u) << failures().dump(2);
}

// The service looks every 5 s. On a busy machine equal ranks may be named, too: that they are not
// is tested by the simulation, and here in the long run only.
TEST_F(WorkerHangTest, ARankThatIsTwentyPercentSlowIsNamedAndEqualRanksAreNot) {
  const auto start_steps = [&](const std::string& name, const char* seconds) {
    return start({"--nproc-per-node=4", "--rdzv-id=" + name, program("worker_test_rank"), name},
                 {{"STEPS_SECONDS", seconds}});
  };
  auto slow = start_steps("slow_steps", "120");
  EXPECT_TRUE(eventually([&] { return slow->err().find("rank 2 is slow") != std::string::npos; },
                         std::chrono::seconds(60)))
      << slow->err();
  auto status = start({"status", "slow_steps", "--json"});
  EXPECT_EQ(status->wait(), 0) << status->err();
  EXPECT_THAT(status->out(), HasSubstr("\"slow\":\"the others wait ")) << status->out();
  slow->signal(SIGTERM);
  EXPECT_EQ(slow->wait(), 128 + SIGTERM) << slow->err();
  EXPECT_THAT(slow->err(),
              testing::ContainsRegex("rank 2 is slow: the others wait [1-9][0-9] % of each step"));
  if (!is_whole()) return;
  EXPECT_THAT(slow->err(), testing::Not(testing::ContainsRegex("rank [013] is slow")));
  auto equal = start_steps("equal_steps", "40");
  EXPECT_EQ(equal->wait(std::chrono::seconds(60)), 0) << equal->err();
  EXPECT_THAT(equal->err(), testing::Not(HasSubstr("slow")));
}

TEST_F(WorkerHangTest, ARankThatIsSlowOnAnotherNodeIsNamedByTheService) {
  const HeldPort held;
  const auto start_node = [&](const std::string& rank) {
    return start({"--nnodes=2", "--nproc-per-node=2", "--node-rank=" + rank, "--rdzv-id=two",
                  "--rdzv-endpoint=" + held.endpoint(), program("worker_test_rank"), "slow_steps"},
                 {{"STEPS_SECONDS", "240"}});
  };
  auto zero = start_node("0");
  auto one = start_node("1");
  const std::string line = "rank 2 \\(node [^)]*\\) is slow: the others wait [1-9][0-9]* % of each";
  const auto says = [&](const ChildProcess& node) {
    return std::regex_search(node.err(), std::regex(line));
  };
  EXPECT_TRUE(eventually([&] { return says(*zero) && says(*one); }, std::chrono::seconds(120)))
      << zero->err() << one->err();
  EXPECT_THAT(http_get(held.port(), "/metrics").body,
              testing::ContainsRegex("ddprun_job_slow_ranks\\{job=\"two\"\\} [1-9]"));
  const auto is_marked = [&] {
    const json status = json::parse(http_get(held.port(), "/status.json").body);
    for (const json& rank : status["jobs"][0]["ranks"]) {
      if (rank["rank"] == 2 && rank.contains("slow")) return true;
    }
    return false;
  };
  EXPECT_TRUE(eventually(is_marked, std::chrono::seconds(60)));
  EXPECT_THAT(http_get(held.port(), "/status.json").body, HasSubstr("job 'two': rank 2 (node "));
  zero->signal(SIGTERM);
  EXPECT_EQ(zero->wait(), 128 + SIGTERM) << zero->err();
  EXPECT_EQ(one->wait(), 128 + SIGTERM) << one->err();
}

TEST_F(WorkerHangTest, RanksThatDisagreeAreToldFromWhereTheyCalledWhereThatIsTraced) {
  for (const char* trace : {"0", "1"}) {
    auto job = start({"--nproc-per-node=3", std::string("--env=DDPRUN_TRACE=") + trace,
                      program("worker_test_rank"), "disagree"});
    EXPECT_NE(job->wait(), 0);
    EXPECT_THAT(job->out(), HasSubstr("ranks 0 and 2 called all_reduce #1 of 4 f32 (sum); rank 1 "
                                      "called broadcast #1 of 4 f32 from rank 0"));
    const auto of_rank_1 =
        HasSubstr(". rank 1: it has been in broadcast of 16 bytes of float32 from rank 0");
    const auto from = HasSubstr(", called from ");
    if (*trace == '1')
      EXPECT_THAT(job->out(), testing::AllOf(of_rank_1, from));
    else
      EXPECT_THAT(job->out(), testing::Not(from));
  }
}

}  // namespace
}  // namespace ddprun::testing_support
