// How a rank begins: what init()'s options and the environment say about its place in the world and
// about where the world meets. As torch.distributed.init_process_group has it:
//
//   env://            RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT; also where there is no method
//   tcp://HOST:PORT   rank 0 hosts the store there
//   file:///PATH      a file that all ranks see says where
//   a Store           which the program has made
//
// `rank` and `world_size` of the options, or ?rank=R&world_size=N behind the method, go over RANK
// and WORLD_SIZE; all but env:// need them. A pure function; any thread.
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
  kNowhere,     // a world of one
  kAgentStore,  // a store that is there: a launcher hosts it
  kAddress,     // rank 0 hosts the store there
  kFile,        // rank 0 hosts a store and writes into the file where it is
  kGivenStore,
};

struct StartPlan {
  WorkerEnv env;  // with this world's rank and size
  MeetAt meet_at = MeetAt::kNowhere;
  HostPort address;  // kAgentStore, kAddress
  std::string file;  // kFile
  // The same for errors: "init_method 'tcp://node0:29500'", "MASTER_ADDR:MASTER_PORT node0:29500".
  std::string place;
};

// kInvalidArgument says what would be right.
Result<StartPlan> plan_start(const StartRequest& request, const EnvLookup& lookup);

}  // namespace ddprun
