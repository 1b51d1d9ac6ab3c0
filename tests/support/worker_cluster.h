// WorkerCluster: the workers of one generation as real processes, started as a launcher starts them
// (the variables of base/worker_env.h, a store in the test's process), without a launcher. For
// tests of what workers do; that ddprun starts them right is tested elsewhere.
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
  std::vector<std::string> command;  // program and arguments, the same for all
  int nodes = 1;                     // simulated: one GROUP_RANK each
  int per_node = 2;
  long generation = 0;
};

class WorkerCluster {
 public:
  explicit WorkerCluster(const WorkerClusterOptions& options);
  ~WorkerCluster();

  // What the worker has written so far: to stdout, then to stderr.
  std::string output(int rank) const;

  void signal(int rank, int number);

  // Waits until every worker has ended; false when the time is over before.
  bool wait_for_all(Duration timeout);

  // Of a worker that has ended: its exit code, 128 + n when signal n ended it.
  int exit_code(int rank) const;

 private:
  std::unique_ptr<RunningStore> store_;
  std::vector<std::unique_ptr<ChildProcess>> workers_;
};

}  // namespace ddprun::testing_support
