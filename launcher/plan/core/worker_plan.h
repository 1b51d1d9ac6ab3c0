// What each worker of a generation is started with. Pure; any thread.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/worker_env.h"
#include "launcher/machine/core/placement.h"
#include "rendezvous/protocol/core/control_message.h"

namespace ddprun {

// The command that every worker runs. "${local_rank}" and "$local_rank" in an argument are replaced, as
// torchrun does; one more "$" in front protects them.
struct WorkerCommand {
  std::string executable;              // a path; becomes argv[0]
  std::vector<std::string> arguments;  // after argv[0]
};

struct PlanOptions {
  WorkerCommand command;
  int slots = 1;
  std::string role = kDefaultRole;
  std::string run_id = kDefaultJobId;
  std::string submission;  // DDPRUN_SUBMISSION; empty: unset
  int max_restarts = 0;
  PortRange ports;
  int checkpoint_signal = 0;  // 0: none
  std::string log_directory;  // of this generation: error files go to <it>/<local rank>/error.json;
                              // empty: there are none
  // Of each local rank; empty: none is bound, and OMP_NUM_THREADS is left as it is.
  std::vector<Seat> seats;
  // The GPU that each local rank is to see, as CUDA_VISIBLE_DEVICES names it; empty: all see all.
  std::vector<std::string> own_devices;
  // --env: over all others.
  std::vector<std::pair<std::string, std::string>> variables;
  bool virtual_local_rank = false;  // every worker has LOCAL_RANK 0
  // Variables of the agent's own environment that decide what is left as it is.
  bool inherits_omp_threads = false;
  std::string page_file;    // of worker pages (base/worker_page.h), one for each slot; empty: none
  bool agent_store = true;  // an agent serves the store, not rank 0
  std::string inherited_nccl_async_error_handling;
};

struct WorkerPlan {
  LocalRank local_rank{0};
  Rank rank{0};
  std::vector<std::string> arguments;
  std::vector<std::pair<std::string, std::string>> variables;
  CpuSet cpus;             // that it may run on; empty: those of its agent
  std::string directory;   // of this worker's files; empty: none
  std::string error_file;  // of its own words on its failure; empty: none
};

// One plan per local rank.
std::vector<WorkerPlan> plan_workers(const PlanOptions& options, const Assignment& assignment);

}  // namespace ddprun
