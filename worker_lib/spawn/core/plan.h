// What spawn() decides before it forks: whether this process can be forked, and what each rank
// finds in its environment. Pure functions; any thread.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "base/worker_env.h"

namespace ddprun {

// What a fork would leave behind, or break.
struct ForkObstacles {
  std::vector<std::string> other_threads;  // names of the threads beside the one that forks
  bool has_cuda = false;                   // the CUDA driver is in use
};

// kUnsupported names what is in the way and what to do.
Result<void> check_can_fork(const ForkObstacles& obstacles);

struct SpawnPlace {
  int ranks = 1;
  HostPort store;  // of these ranks alone
  int cpus = 1;    // that this process may run on
};

// The variables of one rank, in place of whatever a launcher has left in the environment.
struct RankVariables {
  std::vector<std::pair<std::string, std::string>> set;
  std::vector<std::string> unset;
};
// inherited: this process's own environment.
RankVariables variables_of_rank(Rank rank, const SpawnPlace& place, const EnvLookup& inherited);

// LibTorch's threads in each rank: its share of the CPUs, at least 1.
int threads_of_rank(const SpawnPlace& place);

}  // namespace ddprun
