// Merges the shards of a checkpoint into the archive that one rank would have written.
//
// A shard is a file of torch.save, a dict with
//
//   "shard", "shards"   its number, and the number of shards
//   "model"             the share of the tensors
//   "optimizer"         {"state": the share of the parameters' states}
//   "rank"              this rank's own state (an element of "ranks" in the one file)
//
// Shard 0 also has all other keys of the one file, in their places, and "model_names", the names
// of all tensors in order.
//
// Pure; any thread.
#pragma once

#include <vector>

#include "base/result.h"
#include "worker_lib/serialization/core/state_archive.h"

namespace ddprun {

// Merges the shards. The storages get the keys "SHARD/KEY". The result has no records, so
// the number of a storage is not an index there.
// shards: in order; the bytes that they refer to must outlive the result.
// kCorrupt if they do not belong together or something is missing. The message gives the number
// of the shard.
Result<StateArchive> merge_shards(const std::vector<StateArchive>& shards);

}  // namespace ddprun
