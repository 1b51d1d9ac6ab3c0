// Data that the ranks exchange before a save: their positions, which must be equal, their random
// generators, and the state that differs by rank.
//
// Free functions; the thread of the group's calls. Failures throw DistError.
#pragma once

#include <cstdint>
#include <functional>

#include "ddprun/checkpoint.h"
#include "worker_lib/checkpoint/contents.h"
#include "worker_lib/checkpoint/core/training_position.h"

namespace ddprun {

inline constexpr const char* kSaving = "save a checkpoint";

TrainingPosition position_of(const TrainingState& state, std::int64_t step);

struct GatheredState {
  CheckpointFacts facts;
  bool is_shared = false;  // each rank writes its share
  PickleDict own;          // this rank's differences from rank 0
};

struct GatherOptions {
  std::int64_t step = 0;
  std::int64_t generation = 0;
  // Returns whether each rank writes its share, and then its own differences, too. bytes: of rank
  // 0's parameters. Called once on every rank, and may be collective.
  std::function<bool(std::int64_t bytes)> is_shared;
  Timeout timeout{0};  // for the ranks' exchange of their own state
};

// Gathers the state that a save writes. Collective. Throws on every rank if the ranks are not at
// the same position, or if one has failed.
GatheredState gather_for_save(ProcessGroup& group, const TrainingState& state,
                              const GatherOptions& options);

}  // namespace ddprun
