// ClusterPlan: what the scheduler that started this process says about its job.
//
// detect_cluster() looks only at the variables. launcher/options/command_line.h uses the plan for
// options that were given nowhere else. Pure; any thread.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/host_port.h"
#include "base/result.h"
#include "base/worker_env.h"

namespace ddprun {

struct ClusterPlan {
  std::string name;  // of the scheduler and its job: "Slurm step 812.0"
  int nodes = 1;
  int node_rank = 0;
  HostPort endpoint;        // on node rank 0, the same for all nodes of this job
  std::string job_id;       // unlike that of any other job that runs
  std::optional<int> gpus;  // granted on this node; nullopt: the scheduler says nothing of GPUs
  int tasks = 1;            // the most tasks that the scheduler started on one node of this job
  std::string remedy;       // how the scheduler is told to start one task on each node
};

// Returns the plan of the first scheduler whose variables are there. nullopt: there is none. The
// error is kInvalidArgument and names the variable that is missing or wrong.
//
// is_typed: a person typed this command into a shell that the scheduler started. The other nodes
// have no such command, so the plan is that of this node alone.
Result<std::optional<ClusterPlan>> detect_cluster(const EnvLookup& lookup, bool is_typed);

// The step of Slurm in which this ddprun starts workers: "812.0". They inherit it, so that a ddprun
// in a worker is not taken for a task of the step.
inline constexpr const char* kStepVariable = "DDPRUN_SLURM_STEP";
// Returns the value of that variable. Empty: this process is in no step.
std::string slurm_step(const EnvLookup& lookup);

// What a job takes from the plan: the number of workers only, or also how the nodes meet.
enum class Taken { kWorkers, kOneNode, kNodes };

// Returns values for options, by the options' names without dashes.
std::map<std::string, std::string> option_texts(const ClusterPlan& plan, Taken taken);

// Returns the line that says what was taken from the scheduler: "Slurm step 812.0: node 1 of 4, 8
// workers (GPUs of the step), rendezvous at n17:20812".
std::string to_sentence(const ClusterPlan& plan, int workers, Taken taken);

}  // namespace ddprun
