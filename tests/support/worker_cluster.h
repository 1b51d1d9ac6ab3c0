// WorkerCluster: the workers of one generation as real processes, started as a launcher starts them
// (the variables of base/worker_env.h, a store in the test's process), without a launcher. For
// tests of what workers do; that ddprun starts them right is tested elsewhere.
//
// What is still running when the cluster goes, or when the test itself is killed, is killed. One
// thread.
#pragma once

#include <sys/types.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/unique_fd.h"

namespace ddprun::testing_support {

class RunningStore;

struct WorkerClusterOptions {
  std::vector<std::string> command;  // program and arguments, the same for all
  int nodes = 1;                     // simulated: one GROUP_RANK each
  int per_node = 2;
  long generation = 0;
  std::map<std::string, std::string> environment = {};  // beside the launcher's variables
};

class WorkerCluster {
 public:
  explicit WorkerCluster(const WorkerClusterOptions& options);
  ~WorkerCluster();

  int size() const { return static_cast<int>(workers_.size()); }

  // What the worker has written to stdout and stderr so far.
  std::string output(int rank) const;

  void signal(int rank, int number);

  // Waits until every worker has ended; false when the time is over before.
  bool wait_for_all(Duration timeout);

  // Of a worker that has ended: its exit code, 128 + n when signal n ended it.
  int exit_code(int rank) const { return workers_[static_cast<std::size_t>(rank)].exit_code; }

 private:
  struct Worker {
    pid_t pid = -1;  // -1 once it was reaped
    UniqueFd output;
    int exit_code = -1;
  };

  void start(Worker& worker, const WorkerClusterOptions& options,
             std::map<std::string, std::string> variables);
  bool reap(Worker& worker);

  std::unique_ptr<RunningStore> store_;
  std::vector<Worker> workers_;
};

}  // namespace ddprun::testing_support
