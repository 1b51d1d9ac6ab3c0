// Detectors: each knows the variables of one scheduler. detect_cluster() asks them in turn.
// Pure; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "base/worker_env.h"
#include "launcher/cluster/core/cluster_plan.h"

namespace ddprun {

// Returns the plan of this scheduler. nullopt: its variables are not there. The error is
// kInvalidArgument and names the variable that is missing or wrong. kUnsupported: the user must
// start ddprun on the nodes; the error says how.
using Detector = Result<std::optional<ClusterPlan>> (*)(const EnvLookup& lookup);

Result<std::optional<ClusterPlan>> detect_slurm_step(const EnvLookup& lookup);
Result<std::optional<ClusterPlan>> detect_slurm_job(const EnvLookup& lookup);
Result<std::optional<ClusterPlan>> detect_mpi(const EnvLookup& lookup);
Result<std::optional<ClusterPlan>> detect_batch_job(const EnvLookup& lookup);
Result<std::optional<ClusterPlan>> detect_cloud(const EnvLookup& lookup);
Result<std::optional<ClusterPlan>> detect_pod(const EnvLookup& lookup);

// Return the value of a variable that the scheduler must have set. `sign`: the variable by which
// the scheduler was recognised; the error names it.
Result<std::string> needed(const EnvLookup& lookup, std::string_view name, std::string_view sign);
Result<std::uint64_t> needed_number(const EnvLookup& lookup, std::string_view name,
                                    std::string_view sign);
// Returns needed_number(), which must be at least 1.
Result<int> needed_count(const EnvLookup& lookup, std::string_view name, std::string_view sign);
// Returns needed_number(), which must be less than `count`. `counted_by`: where the count is from,
// for the error.
Result<int> needed_index(const EnvLookup& lookup, std::string_view name, std::string_view sign,
                         int count, std::string_view counted_by);

// Returns whether this process is a worker of a launcher such as ddprun or torchrun. It has
// inherited its launcher's variables, but it is not a task of the scheduler.
bool is_worker(const EnvLookup& lookup);

// Ports below those that the kernel gives to outgoing connections: 20000 to 29999.
inline constexpr std::uint64_t kPorts = 10000;
constexpr std::uint16_t numbered_port(std::uint64_t number) {
  return static_cast<std::uint16_t>(20000 + number % kPorts);
}
// Returns the port of the job for schedulers that give none. It is the same on all nodes.
std::uint16_t port_of(std::string_view job_id);

// Sets where the nodes of the plan meet: on `host`, at this port, which was made from the job. If
// another program has it, they meet at one of the next ports.
void meet_near(ClusterPlan& plan, std::string host, std::uint16_t port);

// Returns the number of GPUs in a variable such as "0,1" or "GPU-6da1,GPU-07c3". nullopt: it is not
// set, or it says "all" or "none".
std::optional<int> listed_gpus(const EnvLookup& lookup, std::string_view name);

// NodeVariables: one variable for each fact, in a scheduler that starts one process on each node.
struct NodeVariables {
  const char* name;       // of the scheduler, before the id of the job
  const char* sign;       // is set only in a process that the scheduler started on each node
  const char* nodes;      // the number of nodes
  const char* node_rank;  // from 0
  const char* host;       // of node rank 0
  const char* port;       // nullptr: kDefaultMasterPort, for nodes that share no ports with others
  const char* job_id;
};
// Returns the plan, without workers. nullopt: the sign is not set, or this process is a worker.
Result<std::optional<ClusterPlan>> plan_from(const NodeVariables& variables,
                                             const EnvLookup& lookup);

}  // namespace ddprun
