// Fills a training's state from the newest whole checkpoint.
//
// The ranks first agree on a checkpoint by manifests and sizes. Then its names and shapes are
// compared, and its bytes are verified while they are read into the tensors. So damage may be
// found when some tensors are overwritten. The next older checkpoint then overwrites them again.
// A checkpoint without an older one is verified before anything is overwritten, which reads it
// twice.
//
// Free functions; the thread of the group's calls. Failures throw DistError.
#pragma once

#include <optional>

#include "ddprun/checkpoint.h"
#include "worker_lib/checkpoint/contents.h"
#include "worker_lib/checkpoint/search.h"

namespace ddprun {

class BackgroundTask;

struct RestoreOptions {
  ExtraNames extra = ExtraNames::kRefuse;
  Timeout timeout{0};  // how long the ranks wait for each other's disks
  // Destroys what was read of the file, which takes a while if it has many tensors.
  BackgroundTask& cleanup;
};

// Fills `state` and this rank's generators. Returns the checkpoint, the same on every rank;
// nullopt, with `state` unchanged, if there is none. result: its lines are filled. Collective.
// Throws as find_common() and fill(). Throws kCorrupt if a damaged checkpoint has overwritten a
// part of `state`, and no older one is whole. Throws kSystem if checkpoints vanish while they are
// read, and no other is found.
std::optional<FoundCheckpoint> restore_newest(ProcessGroup& group,
                                              const CheckpointDirectory& directory,
                                              TrainingState& state, Restored& result,
                                              const RestoreOptions& options);

}  // namespace ddprun
