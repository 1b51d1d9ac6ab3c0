// Finds the checkpoint that the ranks restore: the newest one whose manifest and files all of them
// have. The contents of the files are verified while they are restored.
//
// Free functions; the thread of the group's calls. Failures throw DistError.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ddprun/process_group.h"
#include "worker_lib/checkpoint/io.h"

namespace ddprun {

inline constexpr const char* kRestoring = "restore a checkpoint";

// A checkpoint whose manifest is complete, and whose files have their sizes. Their bytes have not
// been read.
struct FoundCheckpoint {
  CheckpointManifest manifest;
  std::string identity;
  std::string file;  // the first of its files
};

// Returns the newest such checkpoint of a step up to `bound`, the same on every rank; nullopt if
// no rank has any. Collective. skipped: one line for each newer checkpoint that was skipped. Throws
// kSystem if a file cannot be read for another reason than damage. Throws it also if the ranks
// have no checkpoint in common. timeout: how long the ranks wait for each other's disks.
std::optional<FoundCheckpoint> find_common(ProcessGroup& group,
                                           const CheckpointDirectory& directory, std::int64_t bound,
                                           Timeout timeout, std::vector<std::string>& skipped);

// Throws kSystem: a rank can read `file`, and `other_rank` has no equal one.
[[noreturn]] void refuse_nothing_in_common(const CheckpointDirectory& directory, int rank,
                                           const std::string& file, int other_rank);

// Returns whether every rank sees such a checkpoint of a step up to `bound`. Collective. Throws
// kSystem as find_common().
bool is_found_by_all(ProcessGroup& group, const CheckpointDirectory& directory, std::int64_t bound,
                     Timeout timeout);

}  // namespace ddprun
