// Which checkpoint the ranks restore: the newest one that all of them can read whole.
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

// A checkpoint whose bytes are in memory and known to be right.
struct LoadedCheckpoint {
  CheckpointManifest manifest;
  std::string identity;
  std::string file;                      // the first of its files
  std::vector<std::vector<char>> bytes;  // of each file
};

// Collective; the same on every rank. skipped: a line for each newer one that was passed over.
// Nothing where no rank has any; kSystem where a file cannot be read for another reason than
// damage, and where the ranks have none in common. timeout: how long the ranks wait for each
// other's disks.
std::optional<LoadedCheckpoint> find_common(ProcessGroup& group,
                                            const CheckpointDirectory& directory, Timeout timeout,
                                            std::vector<std::string>& skipped);

// What it holds, of shards what they hold together. Throws kCorrupt or kUnsupported, naming the
// file.
c10::IValue contents_of(const LoadedCheckpoint& checkpoint);

}  // namespace ddprun
