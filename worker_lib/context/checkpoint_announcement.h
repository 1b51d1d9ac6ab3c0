// How a worker tells its launcher that a checkpoint is whole: by a key in the store of its generation
// (docs/elastic.md). The launcher takes newcomers in then, if it was told to. Any thread; blocks for
// kAnnouncementPatience at most, twice.
#pragma once

#include <cstdint>

#include "base/result.h"
#include "base/worker_env.h"

namespace ddprun {

inline constexpr Duration kAnnouncementPatience = std::chrono::seconds(5);

// Sets kCheckpointKey to the step in the store that the environment names, by a connection of its own.
// Any error of the store's client: the checkpoint is as whole as it was, but nobody was told.
Result<void> announce_checkpoint(const WorkerEnv& env, std::int64_t step);

}  // namespace ddprun
