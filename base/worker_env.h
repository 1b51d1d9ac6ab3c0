// WorkerEnv: the environment with which a worker is started. The launcher writes it, and the
// worker library reads it.
//
// This is the only list of these variables. The launcher builds a WorkerEnv and sets variables_of()
// for each worker; ddprun::init() reads it back with read_worker_env().
// docs/reference/worker_environment.md explains every entry of worker_variables(), and a
// test compares the page with the list. Names and values are torchrun's (2.11), so that PyTorch
// programs find what they expect. DDPRUN_* are ddprun's own.
//
// Value types and, except for environment_variable() and environment_text(), pure functions; any
// thread.
#pragma once

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

// As torchrun's.
inline constexpr std::uint16_t kDefaultMasterPort = 29500;
inline constexpr const char* kDefaultJobId = "none";
inline constexpr const char* kDefaultRole = "default";

// A node that is silent for this time counts as lost, unless its service has another value.
inline constexpr Duration kDefaultLease = std::chrono::seconds(5);

// Workers announce a checkpoint by setting this key in their generation's store. Any client of
// the store can do so: PyTorch's store.set("ddprun/checkpoint", step). The value is for people.
inline constexpr std::string_view kCheckpointKey = "ddprun/checkpoint";

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
  // The next three variables: if empty, the worker gets the value that its agent has inherited,
  // or none. plan_workers() always sets the first one, to the inherited value if there is one.
  std::string nccl_async_error_handling;
  std::string omp_num_threads;
  std::string cuda_visible_devices;
  Generation generation{0};
  // The same in all generations of a job and in no other job of its id. Empty: not known. It
  // changes if a service without --state-dir restarts and a new agent reaches it first.
  std::string submission;
  Duration lease = kDefaultLease;
  PortRange ports;
  int checkpoint_signal = 0;  // asks this worker to save and to leave; 0: none
  // The file of worker pages (base/worker_page.h), and where this worker's page begins. Empty:
  // there is none.
  std::string page_file;
  std::size_t page_offset = 0;
};

// Returns the names of all variables that the launcher may set.
std::vector<std::string_view> worker_variables();

// Returns name and value of every variable that the launcher sets, in the order of
// worker_variables().
std::vector<std::pair<std::string, std::string>> variables_of(const WorkerEnv& env);

// Returns the address where the store of the worker's generation listens.
HostPort store_address(const WorkerEnv& env);

// EnvLookup: returns the value of a variable; nullopt: it is not set.
using EnvLookup = std::function<std::optional<std::string>(std::string_view name)>;
// Looks a variable up in this process's environment.
std::optional<std::string> environment_variable(std::string_view name);
// Returns environment_variable(). Empty: it is not set, or it is empty.
inline std::string environment_text(std::string_view name) {
  return environment_variable(name).value_or("");
}

// Reads the variables at a worker's start. nullopt: there is no launcher, so the worker is a
// world of one. That is so if neither RANK nor WORLD_SIZE is set. Some variables are not always
// set by torchrun either (GROUP_RANK, LOCAL_RANK, ...). Their defaults are those of a single
// node. kInvalidArgument names a variable that is missing, not a number, or out of range.
Result<std::optional<WorkerEnv>> read_worker_env(const EnvLookup& lookup);

}  // namespace ddprun
