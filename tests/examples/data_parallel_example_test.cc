// Tests the example data_parallel on the CPU, as on a host without GPUs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/support/number_after.h"
#include "tests/support/program.h"
#include "tests/support/worker_cluster.h"

namespace ddprun {
namespace {

using std::chrono::seconds;
using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;
using testing_support::Arguments;
using testing_support::ChildProcess;
using testing_support::number_after;
using testing_support::program;
using testing_support::WorkerCluster;

TEST(DataParallelExample, BothWaysEndWithTheSameWeights) {
  for (const int ranks : {1, 2}) {
    WorkerCluster workers({.command = {program("data_parallel")}, .per_node = ranks});
    ASSERT_TRUE(workers.wait_for_all(seconds(60)));
    const std::string out = workers.output(0);
    for (int rank = 0; rank < ranks; ++rank) EXPECT_EQ(workers.exit_code(rank), 0) << out;
    const std::size_t together = out.find("DistributedDataParallel");
    ASSERT_NE(together, std::string::npos) << out;
    EXPECT_THAT(out, StartsWith("data_parallel            1 process on c"));
    EXPECT_LT(number_after(out, "  loss "), 0.8);
    EXPECT_NEAR(number_after(out, "  loss "), number_after(out.substr(together), "  loss "), 1e-3);
    EXPECT_LT(number_after(out, "largest difference of a weight "), 1e-5);
  }
}

TEST(DataParallelExample, BadOptionsAreOneLineAndExitCodeTwo) {
  for (const std::string option : {"--epochs=0", "--nonsense"}) {
    ChildProcess refused({program("data_parallel"), option});
    EXPECT_EQ(refused.wait(), 2);
    EXPECT_THAT(refused.err(),
                AllOf(StartsWith("data_parallel: "), HasSubstr(option.substr(0, 4))));
    EXPECT_EQ(std::ranges::count(refused.err(), '\n'), 1) << refused.err();
  }
  ChildProcess help({program("data_parallel"), "--help"});
  EXPECT_EQ(help.wait(), 0);
  EXPECT_THAT(help.out(), HasSubstr("ddprun --standalone --nproc-per-node=2 data_parallel"));
}

}  // namespace
}  // namespace ddprun
