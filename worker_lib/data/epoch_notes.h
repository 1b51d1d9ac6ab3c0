// EpochNote: the last epoch that a sampler chose. DistributedDataParallel reads the notes of this
// process, to compare them over the ranks.
//
// A sampler counts for a model in three cases: it was made with the model's group, it has the rank
// and the world size of that group, or a CheckpointManager with that group keeps its position.
//
// Any thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "ddprun/process_group.h"
#include "worker_lib/data/core/chosen_epochs.h"

namespace ddprun::detail {

struct EpochNote {
  ChosenEpoch choice;  // sampler: what its order depends on, except the epoch
  int rank = 0, world_size = 1;
  std::vector<std::shared_ptr<GroupNotes>> groups = {};
  int number = 0;  // of samplers with the same text and place; set by replace_note()
};

// Makes `own`, the only reference to a sampler's note, refer to a new, newest note. The note
// exists as long as the reference.
void replace_note(std::shared_ptr<const EpochNote>& own, EpochNote next);

// Returns the choices of the samplers that count for a model on this group.
ChosenEpochs chosen_epochs(const ProcessGroup& group);

}  // namespace ddprun::detail
