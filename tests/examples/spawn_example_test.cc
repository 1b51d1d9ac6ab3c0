// Tests the example spawn with a real process that starts its own ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/support/number_after.h"
#include "tests/support/program.h"
#include "tests/support/test_mark.h"
#include "tests/support/worker_cluster.h"

namespace ddprun {
namespace {

using std::chrono::seconds;
using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;
using testing_support::Arguments;
using testing_support::ChildProcess;
using testing_support::digest_after;
using testing_support::joined;
using testing_support::number_after;
using testing_support::program;
using testing_support::TestMark;
using testing_support::WorkerCluster;

class SpawnExample : public testing::Test {
 protected:
  void TearDown() override { EXPECT_TRUE(mark_.processes().empty()); }

  std::unique_ptr<ChildProcess> run(const Arguments& options, int exit_code) {
    ChildProcess::Options environment;
    environment.variables = {mark_.variable(), {"OMP_NUM_THREADS", "1"}};
    auto job = std::make_unique<ChildProcess>(joined({program("spawn")}, options), environment);
    EXPECT_EQ(job->wait(seconds(60)), exit_code) << job->out() << job->err();
    return job;
  }

  const TestMark mark_;
};

TEST_F(SpawnExample, AFailedRankIsOneLineAndExitCodeOne) {
  const auto job = run({"--fail-rank=1"}, 1);
  EXPECT_EQ(job->err(),
            "spawn: spawn: rank 1 of 2 threw std::runtime_error: failed as requested\n");
  EXPECT_THAT(job->out(), testing::Not(HasSubstr("sha256")));
}

TEST_F(SpawnExample, TwoRanksEndWithTheBitsOfTwoWorkersThatAnotherLauncherStarted) {
  const std::string out = run({}, 0)->out();
  EXPECT_THAT(out, AllOf(HasSubstr("epoch  1  loss "), HasSubstr("all 2 ranks have ended well\n")));
  EXPECT_LT(number_after(out, "epoch  5  loss "), 0.5);
  const std::string digest = digest_after(out, "rank 0  sha256 ");
  EXPECT_EQ(digest_after(out, "rank 1  sha256 "), digest);
  WorkerCluster workers({.command = {program("accumulate"), "--parts=1"}, .per_node = 2});
  ASSERT_TRUE(workers.wait_for_all(seconds(60)));
  EXPECT_EQ(digest_after(workers.output(0), "sha256 "), digest);
}

TEST_F(SpawnExample, HelpShowsACommandAndTheOptions) {
  EXPECT_THAT(run({"--help"}, 0)->out(), AllOf(HasSubstr("Example: spawn --ranks=2"),
                                               HasSubstr("--fail-rank"), HasSubstr("--epochs")));
}

TEST_F(SpawnExample, BadOptionsAreOneLineAndExitCodeTwo) {
  for (const std::string option : {"--ranks=0", "--ranks=two", "--fail-rank=-1", "--nonsense"}) {
    const auto refused = run({option}, 2);
    EXPECT_THAT(refused->err(), AllOf(StartsWith("spawn: "), HasSubstr(option.substr(0, 4))));
    EXPECT_EQ(std::ranges::count(refused->err(), '\n'), 1) << refused->err();
  }
}

}  // namespace
}  // namespace ddprun
