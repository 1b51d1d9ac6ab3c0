// Writes one data file of a checkpoint together: each rank writes its part of it
// (core/file_plan.h), all at the same time.
//
// Rank 0 makes the file under a temporary name, and renames it when all parts are on the disk. Each
// rank opens the file by this name. A rank may not see rank 0's directory, or not be allowed to
// write there. Then it sends its part to rank 0, which writes it. Meanwhile the ranks digest their
// parts one after the other, because a SHA-256 goes from the first byte to the last.
//
// Free functions; the thread that calls into the group of the writers.
#pragma once

#include <ATen/core/ivalue.h>

#include <functional>
#include <string>

#include "ddprun/process_group.h"
#include "worker_lib/checkpoint/io.h"

namespace ddprun {

struct SharedWrite {
  std::string name;  // of the file
  Timeout timeout{0};
  std::function<void()> on_progress = [] {};
};

// Writes the contents of all shards as one file, which is durable on return. shard: this rank's
// (contents.h). Returns the same on every rank. Collective. Throws DistError on every rank if a
// rank cannot write; then there is no file.
WrittenFile write_together(ProcessGroup& writers, CheckpointDirectory& directory,
                           const c10::IValue& shard, const SharedWrite& options);

}  // namespace ddprun
