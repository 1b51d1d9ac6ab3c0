// Decides how a rank starts: its place in the world and the store of the world, from the options
// of init() and the environment. It follows torch.distributed.init_process_group:
//
//   env://            RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT; the default
//   tcp://HOST:PORT   rank 0 hosts the store there
//   file:///PATH      a file that all ranks share contains the address
//   a Store           one that the program has made
//
// `rank` and `world_size` of the options, or ?rank=R&world_size=N after the method, override
// RANK and WORLD_SIZE. All methods except env:// require them. A pure function; any thread.
#pragma once

#include <optional>
#include <string>

#include "base/host_port.h"
#include "base/result.h"
#include "base/worker_env.h"

namespace ddprun {

struct StartRequest {
  std::optional<std::string> init_method;
  std::optional<int> rank;
  std::optional<int> world_size;
  bool has_store = false;
};

enum class MeetAt {
  kNowhere,     // the world has one rank
  kAgentStore,  // a store that already exists: a launcher hosts it
  kAddress,     // rank 0 hosts the store there
  kFile,        // rank 0 hosts a store and writes its address into the file
  kGivenStore,
};

struct StartPlan {
  WorkerEnv env;  // with the rank and size of this world
  MeetAt meet_at = MeetAt::kNowhere;
  HostPort address;  // kAgentStore, kAddress
  std::string file;  // kFile
  // The place as errors name it: "init_method 'tcp://node0:29500'", "MASTER_ADDR:MASTER_PORT
  // node0:29500".
  std::string place;
};

// Returns the plan. kInvalidArgument says what would be valid.
Result<StartPlan> plan_start(const StartRequest& request, const EnvLookup& lookup);

}  // namespace ddprun
