// Plans the arguments and environment of each worker of a generation. Pure; any thread.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/worker_env.h"
#include "launcher/machine/core/placement.h"
#include "launcher/options/core/launch_options.h"
#include "rendezvous/protocol/core/control_message.h"

namespace ddprun {

// WorkerCommand: the command that every worker runs. "${local_rank}" and "$local_rank" in an
// argument are replaced, as torchrun does. One more "$" before them prevents that.
struct WorkerCommand {
  std::string executable;              // a path; becomes argv[0]
  std::vector<std::string> arguments;  // after argv[0]
};

struct PlanOptions {
  LaunchOptions options;
  WorkerCommand command;
  int slots = 1;
  std::string submission;  // DDPRUN_SUBMISSION; empty: unset
  // Of this generation; error files are <log_directory>/<local rank>/error.json. Empty: none.
  std::string log_directory;
  // By local rank. Empty: no worker is bound, and OMP_NUM_THREADS stays as it is.
  std::vector<Seat> seats;
  // By local rank: the GPU that it sees, as CUDA_VISIBLE_DEVICES names it. Empty: all see all
  // GPUs.
  std::vector<std::string> own_devices;
  // True if the agent's own environment sets OMP_NUM_THREADS, which then stays as it is.
  bool inherits_omp_threads = false;
  std::string page_file;  // of worker pages (base/worker_page.h), one for each slot; empty: none
  std::string inherited_nccl_async_error_handling;
};

struct WorkerPlan {
  LocalRank local_rank{0};
  Rank rank{0};
  std::vector<std::string> arguments;
  std::vector<std::pair<std::string, std::string>> variables;
  CpuSet cpus;             // CPUs that it may run on; empty: those of its agent
  std::string directory;   // for this worker's files; empty: none
  std::string error_file;  // where it describes its own failure; empty: none
};

// Returns one plan per local rank.
std::vector<WorkerPlan> plan_workers(const PlanOptions& options, const Assignment& assignment);

}  // namespace ddprun
