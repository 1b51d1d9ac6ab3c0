// What the ranks tell each other before a save: whether they are at the same position, their random
// generators, and what each has of its own.
//
// Free functions; the thread of the group's calls. Failures throw DistError.
#pragma once

#include <cstdint>
#include <string>

#include "ddprun/checkpoint.h"
#include "worker_lib/checkpoint/contents.h"
#include "worker_lib/checkpoint/core/training_position.h"

namespace ddprun {

TrainingPosition position_of(const TrainingState& state, std::int64_t step);

struct GatheredState {
  CheckpointFacts facts;
  PickleDict own;  // of this rank, what differs from rank 0's
};

struct GatherOptions {
  std::int64_t step = 0;
  std::int64_t generation = 0;
  bool is_sharded = false;  // then each rank writes what it has of its own
  Timeout timeout{0};       // for the ranks' own parts of the state
};

// Collective. Throws on every rank if the ranks are not at the same position, or if one has failed.
GatheredState gather_for_save(ProcessGroup& group, const TrainingState& state,
                              const GatherOptions& options);

}  // namespace ddprun
