// Announces a complete checkpoint to the launcher: the worker sets a key in the store of its
// generation (docs/how-to/elastic.md). The launcher then admits new nodes, if it was told to. Any
// thread. Blocks for at most kAnnouncementPatience, twice.
#pragma once

#include <cstdint>

#include "base/result.h"
#include "base/worker_env.h"

namespace ddprun {

inline constexpr Duration kAnnouncementPatience = std::chrono::seconds(5);

// Sets kCheckpointKey to the step in the store that the environment names, through its own
// connection. Returns any error of the store's client. After an error the checkpoint is still
// complete, but it was not announced.
Result<void> announce_checkpoint(const WorkerEnv& env, std::int64_t step);

}  // namespace ddprun
