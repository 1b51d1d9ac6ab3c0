// A training as the contents of a checkpoint, and back: which of the file's keys is filled from
// what, and what is compared when it is restored. docs/checkpoints.md has the table of the keys.
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

namespace ddprun {

// A kind of generator that each rank has one of.
struct RankGenerator {
  const char* key;  // in the file
  at::Generator generator;
};
std::vector<RankGenerator> generators_of(const ProcessGroup& group);
torch::Tensor state_of(at::Generator generator);

// What is not in a rank's own TrainingState.
struct CheckpointFacts {
  std::int64_t step = 0;
  std::int64_t generation = 0;
  int world_size = 1;
  std::vector<PickleDict> generators;          // of every rank, in rank order
  std::optional<PickleDict> optimizer_states;  // if they are dealt out to the ranks: of all of them
  std::map<std::string, PickleDict> named_optimizer_states =
      {};  // the same, by TrainingState's names
  // What differs from rank 0's, by rank (rank_state.h); empty: nothing.
  std::vector<c10::IValue> of_ranks;
};

// Throws kInvalidArgument for names and pointers in TrainingState's lists that cannot be meant.
void expect_sound_names(const TrainingState& state);

// For the manifest: model_hash() of the one model, or a hash over all of them with their names.
std::string hash_of_models(const TrainingState& state);

PickleDict contents_of(const TrainingState& state, const CheckpointFacts& facts);

// The shard of one rank (checkpoint/core/shards.h). own: what differs from rank 0's.
PickleDict shard_of(const TrainingState& state, const CheckpointFacts& facts,
                    const ShardAssignment& share, const PickleDict& own);

// What to do about names in the file's lists that `state` does not have.
enum class ExtraNames { kRefuse, kRemark };

// Fills `state` and this rank's generators from what `file` holds. remarks: differences from the
// saved run. Throws kInvalidArgument for what belongs to another training, kCorrupt where an entry
// is missing. Names and classes are compared before anything is filled.
void fill(TrainingState& state, const c10::IValue& top, const std::string& file,
          const ProcessGroup& group, ExtraNames extra, std::vector<std::string>& remarks);

}  // namespace ddprun
