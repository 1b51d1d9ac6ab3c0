// Runs the conformance suite on the cpu backend with one process for each rank.
#include "tests/worker_lib/support/conformance_processes.h"

#include "tests/support/program.h"
#include "tests/support/whole.h"

namespace ddprun {
namespace {

// The parameter has one letter for each rank, which names its node
// (tests/worker_lib/cpu_group/world.h).
class ConformanceOfProcesses : public testing::TestWithParam<const char*> {};

TEST_P(ConformanceOfProcesses, PassesOnEveryRank) {
  testing_support::expect_suite_passes_in_processes(testing_support::program("worker_backend_test"),
                                                    "*Conformance.*/cpu", GetParam(),
                                                    std::chrono::seconds(100));
}

std::vector<const char*> layouts() {
  if (!testing_support::is_whole()) return {"a", "aa", "ab", "aab", "aabc"};
  return {"a",    "aa",   "ab",   "aaa",      "aab",      "abc",
          "aaaa", "aabb", "aabc", "aaaaaaaa", "aaaabbbb", "aaabbbcc"};
}

INSTANTIATE_TEST_SUITE_P(Layouts, ConformanceOfProcesses, testing::ValuesIn(layouts()),
                         [](const auto& layout) { return std::string(layout.param); });

}  // namespace
}  // namespace ddprun
