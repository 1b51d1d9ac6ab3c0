#include "launcher/main/bench.h"

#include <gtest/gtest.h>

namespace ddprun {
namespace {

using Words = std::vector<std::string>;

TEST(BenchJob, HasOneWorkerOnEachNode) {
  EXPECT_EQ(bench_job({"--hosts", "a,b"}, "/bin/ddprun-bench"),
            (Words{"--hosts", "a,b", "--nproc-per-node=1", "--no-python", "/bin/ddprun-bench"}));
}

TEST(BenchJob, HasAsManyWorkersAsAreGiven) {
  for (const Words& given : {Words{"--nproc-per-node=8"}, Words{"--nproc_per_node", "8"}}) {
    Words expected = given;
    expected.insert(expected.end(), {"--no-python", "b"});
    EXPECT_EQ(bench_job(given, "b"), expected);
  }
}

TEST(BenchJob, PassesWhatFollowsTheDashesToItsWorker) {
  EXPECT_EQ(bench_job({"--", "--json", "--", "x"}, "b"),
            (Words{"--nproc-per-node=1", "--no-python", "b", "--json", "--", "x"}));
}

}  // namespace
}  // namespace ddprun
