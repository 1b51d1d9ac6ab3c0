// Converts a training to the contents of a checkpoint, and back: the source of each of the file's
// keys, and the comparisons of a restore. docs/reference/file_formats.md has the table of the keys.
//
// Free functions; the thread that trains. Failures throw DistError.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "ddprun/checkpoint.h"
#include "worker_lib/checkpoint/shard_assignment.h"
#include "worker_lib/serialization/checkpoint_state.h"
#include "worker_lib/serialization/state_snapshot.h"

namespace ddprun {

// RankGenerator: a kind of generator of which each rank has one.
struct RankGenerator {
  const char* key;  // in the file
  at::Generator generator;
};
std::vector<RankGenerator> generators_of(const ProcessGroup& group);
torch::Tensor state_of(at::Generator generator);

// CheckpointFacts: the contents that are not in a rank's own TrainingState.
struct CheckpointFacts {
  std::int64_t step = 0;
  std::int64_t generation = 0;
  int world_size = 1;
  std::vector<PickleDict> generators;  // of every rank, in rank order
  // Of all ranks, if they are sharded over the ranks.
  std::optional<PickleDict> optimizer_states = {};
  // The same, by TrainingState's names.
  std::map<std::string, PickleDict> named_optimizer_states = {};
  // The differences of each rank from rank 0 (rank_state.h); empty: none.
  std::vector<c10::IValue> of_ranks = {};
};

// Throws kInvalidArgument for invalid names and pointers in TrainingState's lists.
void expect_sound_names(const TrainingState& state);

// Returns the hash for the manifest: model_hash() of the one model, or a hash over all of them
// with their names.
std::string hash_of_models(const TrainingState& state);
// Returns the same of the state whose contents_of() without shares these are.
std::string hash_of_models(const PickleDict& contents);

// share: rank 0's, if each rank writes its own. snapshot: null, or copies what the
// training goes on changing. The contents are then valid until its next begin().
PickleDict contents_of(const TrainingState& state, const CheckpointFacts& facts,
                       const ShardAssignment* share = nullptr, StateSnapshot* snapshot = nullptr);

// Returns the shard of one rank (checkpoint/core/shards.h). own: its differences from rank 0.
PickleDict shard_of(const TrainingState& state, const CheckpointFacts& facts,
                    const ShardAssignment& share, const PickleDict& own);

// How to treat names in the file's lists that `state` does not have.
enum class ExtraNames { kRefuse, kRemark };

// Throws what fill() would throw for names, classes and shapes of models. Changes nothing, and
// reads no tensor.
void expect_loadable(const TrainingState& state, const SavedValue& top, const ProcessGroup& group,
                     ExtraNames extra);

// Fills `state` and this rank's generators from the contents of a file. remarks: differences
// from the saved run. Throws kInvalidArgument for contents of another training, and kCorrupt if
// an entry is missing. Names and classes are compared before anything is filled.
void fill(TrainingState& state, const SavedValue& top, const ProcessGroup& group, ExtraNames extra,
          std::vector<std::string>& remarks);

}  // namespace ddprun
