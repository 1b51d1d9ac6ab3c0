// WorkerCluster: the workers of one generation as real processes, started without a launcher.
// For tests of what workers do; other tests check that ddprun starts them correctly.
//
// The workers get the same things as from a launcher: the variables of base/worker_env.h, and a
// store, which runs in the test's process.
//
// One thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "tests/support/child_process.h"

namespace ddprun::testing_support {

class RunningStore;

struct WorkerClusterOptions {
  std::vector<std::string> command;  // program and arguments, the same for all workers
  int nodes = 1;                     // simulated nodes: one GROUP_RANK each
  int per_node = 2;
  long generation = 0;
};

class WorkerCluster {
 public:
  explicit WorkerCluster(const WorkerClusterOptions& options);
  ~WorkerCluster();

  // Returns the worker's output so far: first stdout, then stderr.
  std::string output(int rank) const;

  void signal(int rank, int number);

  // Waits until every worker has ended. Returns false if the time is over first.
  bool wait_for_all(Duration timeout);

  // Returns the exit code of a worker that has ended; 128 + n if signal n ended it.
  int exit_code(int rank) const;

 private:
  std::unique_ptr<RunningStore> store_;
  std::vector<std::unique_ptr<ChildProcess>> workers_;
};

}  // namespace ddprun::testing_support
