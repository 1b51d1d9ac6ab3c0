// Runs the conformance suite (backend_conformance.h) with one process for each rank. Each
// process runs the whole suite, and the processes form a world in each test.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/support/child_process.h"
#include "tests/support/running_store.h"

namespace ddprun::testing_support {

// Runs `program` once for each rank and expects that all of them pass. `program` contains the
// suite. `filter` selects the tests of one backend in both test suites. `letters` names the
// world, with one letter for each rank. Each process may take `allowed`.
inline void expect_suite_passes_in_processes(const std::string& program, const std::string& filter,
                                             const std::string& letters, Duration allowed) {
  RunningStore store;
  std::vector<std::unique_ptr<ChildProcess>> ranks;
  for (std::size_t rank = 0; rank < letters.size(); ++rank) {
    ChildProcess::Options options;
    options.variables = {{"DDPRUN_CONFORMANCE_RANK", letters + " " + std::to_string(rank) + " " +
                                                         std::to_string(store.port())},
                         {"OMP_NUM_THREADS", "1"}};
    ranks.push_back(std::make_unique<ChildProcess>(
        std::vector<std::string>{program, "--gtest_brief=1", "--gtest_filter=" + filter}, options));
  }
  for (std::size_t rank = 0; rank < letters.size(); ++rank) {
    EXPECT_EQ(ranks[rank]->wait(allowed), 0) << "rank " << rank << ":\n"
                                             << ranks[rank]->out() << ranks[rank]->err();
    EXPECT_NE(ranks[rank]->out().find("tests from 2 test suites ran"), std::string::npos)
        << ranks[rank]->out();
  }
}

}  // namespace ddprun::testing_support
