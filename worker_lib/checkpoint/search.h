// Finds the checkpoint that the ranks restore: the newest one that all of them can read
// completely.
//
// Free functions; the thread of the group's calls. Failures throw DistError.
#pragma once

#include <ATen/core/ivalue.h>

#include <optional>
#include <string>
#include <vector>

#include "ddprun/process_group.h"
#include "worker_lib/checkpoint/io.h"

namespace ddprun {

inline constexpr const char* kRestoring = "restore a checkpoint";

// A checkpoint whose bytes are in memory and have been verified.
struct LoadedCheckpoint {
  CheckpointManifest manifest;
  std::string identity;
  std::string file;                      // the first of its files
  std::vector<std::vector<char>> bytes;  // of each file
};

// Returns the checkpoint, the same on every rank; nullopt if no rank has any. Collective.
// skipped: one line for each newer checkpoint that was skipped. Throws kSystem if a file cannot
// be read for another reason than damage. Throws it also if the ranks have no checkpoint in
// common. timeout: how long the ranks wait for each other's disks.
std::optional<LoadedCheckpoint> find_common(ProcessGroup& group,
                                            const CheckpointDirectory& directory, Timeout timeout,
                                            std::vector<std::string>& skipped);

// Returns the contents; of shards the merged contents. Throws kCorrupt or kUnsupported, with the
// name of the file.
c10::IValue contents_of(const LoadedCheckpoint& checkpoint);

}  // namespace ddprun
