// What each worker of a generation is started with. Pure; any thread.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/worker_env.h"
#include "rendezvous/core/control_message.h"

namespace ddprun {

// The command that every worker runs. "${local_rank}" in an argument is replaced, as torchrun does.
struct WorkerCommand {
  std::string executable;              // a path; becomes argv[0]
  std::vector<std::string> arguments;  // after argv[0]
};

struct PlanOptions {
  WorkerCommand command;
  int slots = 1;
  std::string role = kDefaultRole;
  std::string run_id = kDefaultJobId;
  int max_restarts = 0;
  PortRange ports;
  int checkpoint_signal = 0;  // 0: none
  std::string log_directory;  // of this generation: error files go to <it>/<local rank>/error.json;
                              // empty: there are none
  // --virtual-local-rank: the device of each local rank, as CUDA_VISIBLE_DEVICES names it; empty:
  // without it.
  std::vector<std::string> own_devices;
  // --env: over all others.
  std::vector<std::pair<std::string, std::string>> variables;
  // Variables of the agent's own environment that decide what is left as it is.
  bool inherits_omp_threads = false;
  bool agent_store = true;  // an agent serves the store, not rank 0
  std::string inherited_nccl_async_error_handling;
};

struct WorkerPlan {
  LocalRank local_rank{0};
  Rank rank{0};
  std::vector<std::string> arguments;
  std::vector<std::pair<std::string, std::string>> variables;
  std::string directory;   // of this worker's files; empty: none
  std::string error_file;  // of its own words on its failure; empty: none
};

// --virtual-local-rank: which device each of so many workers has, of those that are visible: the value
// of CUDA_VISIBLE_DEVICES; empty: all, by number. kInvalidArgument where there are fewer.
Result<std::vector<std::string>> devices_of(const std::string& visible, int slots);

// One plan per local rank.
std::vector<WorkerPlan> plan_workers(const PlanOptions& options, const Assignment& assignment);

}  // namespace ddprun
