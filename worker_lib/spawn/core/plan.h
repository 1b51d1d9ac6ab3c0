// Decides before spawn() forks: whether this process can be forked, and which environment each
// rank gets. Pure functions; any thread.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "base/worker_env.h"

namespace ddprun {

// ForkObstacles: what a fork would lose or break.
struct ForkObstacles {
  std::vector<std::string> other_threads;  // names of all threads except the forking one
  bool has_cuda = false;                   // the CUDA driver is in use
};

// Checks that the process can be forked. kUnsupported names the obstacle and the remedy.
Result<void> check_can_fork(const ForkObstacles& obstacles);

struct SpawnPlace {
  int ranks = 1;
  HostPort store;  // only for these ranks
  int cpus = 1;    // number of CPUs that this process may run on
};

// RankVariables: the environment variables of one rank. They replace those that a launcher has
// left in the environment.
struct RankVariables {
  std::vector<std::pair<std::string, std::string>> set;
  std::vector<std::string> unset;
};
// inherited: the environment of this process.
RankVariables variables_of_rank(Rank rank, const SpawnPlace& place, const EnvLookup& inherited);

// Returns the number of LibTorch's threads in each rank: its share of the CPUs, at least 1.
int threads_of_rank(const SpawnPlace& place);

}  // namespace ddprun
