// The environment a worker is started with: written by the launcher, read by the worker library.
//
// This is the single list. The launcher builds a WorkerEnv and writes variables_of() into each
// worker; ddprun::init() reads it back with read_worker_env(). docs/worker_environment.md explains
// every entry of kWorkerVariables, and a test ties the page to the table. The names and values are
// torchrun's (2.11), so PyTorch programs find what they expect; DDPRUN_* are our own.
//
// Value types and pure functions; any thread.
#pragma once

#include <array>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/host_port.h"
#include "base/ids.h"
#include "base/result.h"

namespace ddprun {

struct WorkerVariable {
  std::string_view name;
  std::string_view meaning;
};

inline constexpr std::array kWorkerVariables = std::to_array<WorkerVariable>({
    {"RANK", "rank of this worker in the world, 0 .. WORLD_SIZE-1"},
    {"WORLD_SIZE", "workers in this generation, on all nodes"},
    {"LOCAL_RANK", "index of this worker on its node, 0 .. LOCAL_WORLD_SIZE-1"},
    {"LOCAL_WORLD_SIZE", "workers on this node"},
    {"GROUP_RANK", "rank of this node"},
    {"GROUP_WORLD_SIZE", "nodes in this generation"},
    {"ROLE_NAME", "the --role of this worker"},
    {"ROLE_RANK", "rank among the workers of this role"},
    {"ROLE_WORLD_SIZE", "workers of this role"},
    {"MASTER_ADDR", "address of this generation's store"},
    {"MASTER_PORT", "port of this generation's store"},
    {"TORCHELASTIC_RESTART_COUNT", "restarts the job has used so far, the same on every node"},
    {"TORCHELASTIC_MAX_RESTARTS", "the job's restart budget, --max-restarts"},
    {"TORCHELASTIC_RUN_ID", "the job's id, --rdzv-id"},
    {"TORCHELASTIC_USE_AGENT_STORE", "True: the agent hosts the store, rank 0 must not"},
    {"TORCHELASTIC_ERROR_FILE", "where a worker may leave an error report (JSON)"},
    {"TORCHELASTIC_SIGNALS_TO_HANDLE", "signals that the agent passes on"},
    {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "1 unless inherited"},
    {"OMP_NUM_THREADS", "1 unless inherited or there is one worker"},
    {"DDPRUN_GENERATION", "number of this forming of the world, from 0"},
    {"DDPRUN_PORT_RANGE", "ports that the worker may listen on, --port-range; not set: any"},
});

// The values of one worker. Defaults are those of a world of one.
struct WorkerEnv {
  Rank rank{0};
  int world_size = 1;
  LocalRank local_rank{0};
  int local_world_size = 1;
  NodeRank node_rank{0};
  int node_count = 1;
  std::string role = "default";
  Rank role_rank{0};
  int role_world_size = 1;
  std::string master_addr;
  int master_port = 0;
  bool agent_store = false;  // an agent hosts the store, so this rank must not
  int restart_count = 0;
  int max_restarts = 0;
  std::string run_id = "none";
  std::string error_file;
  std::string signals_to_handle = "SIGTERM,SIGINT,SIGHUP,SIGQUIT";
  // Empty: the worker finds what its agent has inherited, or nothing. plan_workers() always says the
  // first one, with the inherited value where there is one.
  std::string nccl_async_error_handling;
  std::string omp_num_threads;
  Generation generation{0};
  PortRange ports;
};

// Name and value of every variable that the launcher sets, in the order of kWorkerVariables.
std::vector<std::pair<std::string, std::string>> variables_of(const WorkerEnv& env);

// Looks a variable up; nullopt when it is not set.
using EnvLookup = std::function<std::optional<std::string>(std::string_view name)>;

// What a worker reads at start. nullopt: there is no launcher (neither RANK nor WORLD_SIZE is set),
// so the worker is a world of one. Variables that torchrun, too, does not always give (GROUP_RANK,
// LOCAL_RANK, ...) fall back to those of a single node; kInvalidArgument names a variable that is
// missing, not a number, or out of range.
Result<std::optional<WorkerEnv>> read_worker_env(const EnvLookup& lookup);

}  // namespace ddprun
