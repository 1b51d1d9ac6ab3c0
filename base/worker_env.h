// The environment a worker is started with: written by the launcher, read by the worker library.
//
// This is the single list. The launcher builds a WorkerEnv and writes variables_of() into each
// worker; ddprun::init() reads it back with read_worker_env(). docs/worker_environment.md explains
// every entry of kWorkerVariables, and a test ties the page to the table. The names and values are
// torchrun's (2.11), so PyTorch programs find what they expect; DDPRUN_* are our own.
//
// Value types and, but for environment_variable(), pure functions; any thread.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/host_port.h"
#include "base/ids.h"
#include "base/result.h"

namespace ddprun {

// As torchrun.
inline constexpr std::uint16_t kDefaultMasterPort = 29500;
inline constexpr const char* kDefaultJobId = "none";
inline constexpr const char* kDefaultRole = "default";

// A node that is silent for so long counts as lost, unless its service is told otherwise.
inline constexpr Duration kDefaultLease = std::chrono::seconds(5);

// Workers announce a checkpoint by setting this key in their generation's store, as any client of
// it does: PyTorch's store.set("ddprun/checkpoint", step). The value is for people.
inline constexpr std::string_view kCheckpointKey = "ddprun/checkpoint";

inline constexpr std::array kWorkerVariables = std::to_array<std::string_view>({
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "ROLE_NAME",
    "ROLE_RANK",
    "ROLE_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_RESTART_COUNT",
    "TORCHELASTIC_MAX_RESTARTS",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_USE_AGENT_STORE",
    "TORCHELASTIC_ERROR_FILE",
    "TORCHELASTIC_SIGNALS_TO_HANDLE",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING",
    "OMP_NUM_THREADS",
    "CUDA_VISIBLE_DEVICES",
    "DDPRUN_GENERATION",
    "DDPRUN_SUBMISSION",
    "DDPRUN_LEASE_MS",
    "DDPRUN_PORT_RANGE",
    "DDPRUN_CHECKPOINT_SIGNAL",
    "DDPRUN_WORKER_PAGE",
});

// The values of one worker. Defaults are those of a world of one.
struct WorkerEnv {
  Rank rank{0};
  int world_size = 1;
  LocalRank local_rank{0};
  int local_world_size = 1;
  NodeRank node_rank{0};
  int node_count = 1;
  std::string role = kDefaultRole;
  std::string master_addr;
  std::uint16_t master_port = 0;
  bool agent_store = false;  // an agent hosts the store, so this rank must not
  int restart_count = 0;
  int max_restarts = 0;
  std::string run_id = kDefaultJobId;
  std::string error_file;
  // Empty: the worker finds what its agent has inherited, or nothing. plan_workers() always says the
  // first one, with the inherited value where there is one.
  std::string nccl_async_error_handling;
  std::string omp_num_threads;
  std::string cuda_visible_devices;
  Generation generation{0};
  // The same in all generations of a job and in no other job of its id; empty: not known. It
  // changes if a service without --state-dir restarts and a new agent reaches it first.
  std::string submission;
  Duration lease = kDefaultLease;
  PortRange ports;
  int checkpoint_signal = 0;  // that asks this worker to save and to leave; 0: none
  // The file of worker pages (base/worker_page.h) and where this worker's begins; empty: there is none.
  std::string page_file;
  std::size_t page_offset = 0;
};

// Name and value of every variable that the launcher sets, in the order of kWorkerVariables.
std::vector<std::pair<std::string, std::string>> variables_of(const WorkerEnv& env);

// Where the store of the worker's generation listens.
HostPort store_address(const WorkerEnv& env);

// Looks a variable up; nullopt when it is not set.
using EnvLookup = std::function<std::optional<std::string>(std::string_view name)>;
// In this process's environment.
std::optional<std::string> environment_variable(std::string_view name);

// What a worker reads at start. nullopt: there is no launcher (neither RANK nor WORLD_SIZE is set),
// so the worker is a world of one. Variables that torchrun, too, does not always give (GROUP_RANK,
// LOCAL_RANK, ...) fall back to those of a single node; kInvalidArgument names a variable that is
// missing, not a number, or out of range.
Result<std::optional<WorkerEnv>> read_worker_env(const EnvLookup& lookup);

}  // namespace ddprun
