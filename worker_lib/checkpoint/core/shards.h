// A checkpoint that each rank wrote its share of, put together: the archive that one rank would
// have written.
//
// A shard is a file of torch.save, a dict with
//
//   "shard", "shards"   which one it is, of how many
//   "model"             the share of the tensors
//   "optimizer"         {"state": the share of the parameters' states}
//   "rank"              what this rank has of its own (an element of "ranks" in the one file)
//
// and shard 0 has all the other keys of the one file as well, in their places, and "model_names",
// the names of all tensors in order.
//
// Pure; any thread.
#pragma once

#include <vector>

#include "base/result.h"
#include "worker_lib/serialization/core/state_archive.h"

namespace ddprun {

struct MergedArchive {
  // Storages have the keys "SHARD/KEY".
  StateArchive archive;
  // Of the storages, by key, as the shards' directories have them.
  std::unordered_map<std::string, std::uint32_t> crcs;
};

// shards: in order; what they are made of must outlive the result. kCorrupt, naming the shard by
// its number, if they do not belong together or something is missing.
Result<MergedArchive> merge_shards(const std::vector<StateArchive>& shards);

}  // namespace ddprun
