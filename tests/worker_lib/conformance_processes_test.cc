// The conformance suite (backend_conformance_test.cc) on the cpu backend with ranks as processes: each
// rank is a process that goes through the whole suite, and they meet in each of its tests.
#include <gtest/gtest.h>

#include "tests/support/child_process.h"
#include "tests/support/program.h"
#include "tests/support/running_store.h"

namespace ddprun {
namespace {

using testing_support::ChildProcess;

// One letter for each rank, one for each node: tests/worker_lib/cpu/world.h.
class ConformanceOfProcesses : public testing::TestWithParam<const char*> {};

TEST_P(ConformanceOfProcesses, PassesOnEveryRank) {
  const std::string letters = GetParam();
  testing_support::RunningStore store;
  std::vector<std::unique_ptr<ChildProcess>> ranks;
  for (std::size_t rank = 0; rank < letters.size(); ++rank) {
    ChildProcess::Options options;
    options.variables = {{"DDPRUN_CONFORMANCE_RANK", letters + " " + std::to_string(rank) + " " +
                                                         std::to_string(store.port())},
                         {"OMP_NUM_THREADS", "1"}};
    ranks.push_back(std::make_unique<ChildProcess>(
        std::vector<std::string>{testing_support::program("worker_backend_test"), "--gtest_brief=1",
                                 "--gtest_filter=*Conformance.*/cpu"},
        options));
  }
  for (std::size_t rank = 0; rank < letters.size(); ++rank) {
    EXPECT_EQ(ranks[rank]->wait(std::chrono::seconds(100)), 0)
        << "rank " << rank << ":\n"
        << ranks[rank]->out() << ranks[rank]->err();
    EXPECT_NE(ranks[rank]->out().find("tests from 2 test suites ran"), std::string::npos)
        << ranks[rank]->out();
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, ConformanceOfProcesses,
                         testing::Values("a", "aa", "ab", "aaa", "aab", "abc", "aaaa", "aabb",
                                         "aabc", "aaaaaaaa", "aaaabbbb", "aaabbbcc"),
                         [](const auto& layout) { return std::string(layout.param); });

}  // namespace
}  // namespace ddprun
