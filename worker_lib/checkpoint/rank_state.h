// The state that differs by rank, in a checkpoint that otherwise holds rank 0's state. Such
// state can be buffers that are not broadcast, or parameters and optimizer state of ranks that
// drift apart on purpose. It can also be the state of a communication hook, or gradients in the
// middle of an accumulation.
//
// In the file:
//
//   "ranks": [{}, {"model": {name: tensor}, "optimizer": {i: {...}}, "comm_hook": {name: tensor},
//                  "gradients": {name: tensor}}, ...]
//
// Objects that TrainingState names have the sections "models", "optimizers" and "tensors", with
// keys "NAME/ENTRY" (for tensors "NAME"). Gradients of named models have such keys in
// "gradients".
//
// Element r is rank r's. It has sections with the entries that are not equal, bit for bit, to
// rank 0's, which are under the file's other keys. None: rank 0 has the entry and this rank does
// not. If nothing differs the key "ranks" is missing.
//
// The ranks compare hashes (one number of each rank, and a table only if the numbers differ). So
// state that is equal on all ranks is neither sent nor written twice. Free functions; the thread
// of the group's calls.
#pragma once

#include <string>
#include <vector>

#include "ddprun/checkpoint.h"
#include "worker_lib/collective/core/divergence.h"
#include "worker_lib/serialization/checkpoint_state.h"

namespace ddprun {

// Returns whether ranks may have other parameters than rank 0.
bool may_differ_anywhere(const TrainingState& state);

// Returns sections of the state that may differ by rank. Tensors share memory with the live ones
// if those are on the CPU. kUnsupported: a sparse gradient.
PickleDict own_state(const TrainingState& state);

// Returns a hash of every entry of the sections.
std::vector<NamedHash> hashes_of(const PickleDict& own);

// Returns the entries that differ from rank 0's.
PickleDict differences(const PickleDict& own, const std::vector<NamedHash>& of_rank_0);

// RankView: a checkpoint as one rank of a world of this size sees it.
class RankView {
 public:
  // top: the contents of a file.
  RankView(const SavedValue& top, int rank, int world_size);

  // Returns whether the world that saved has the same size: each rank then gets its own state back.
  bool is_same_world() const { return saved_world_ == world_size_; }
  bool has_own() const { return !ranks_.empty(); }

  // Returns this rank's section, if rank 0's is `of_rank_0`. In a world of another size it is
  // rank 0's. Throws as expect_places(), like the functions below.
  PickleDict section(const std::string& key, const PickleDict& of_rank_0) const;
  // Returns the same for tensors that are partial sums. In a world of another size it is the
  // average over the saved ranks, so that the average over the ranks stays the same.
  PickleDict averaged_section(const std::string& key, const PickleDict& of_rank_0) const;
  // Returns the sections whose tensors it reads.
  std::vector<PickleDict> averaged_sections(const std::string& key,
                                            const PickleDict& of_rank_0) const;

 private:
  PickleDict of_rank(int rank, const std::string& key, const PickleDict& of_rank_0) const;

  int rank_;
  int world_size_;
  int saved_world_;
  std::string file_;
  std::vector<c10::IValue> ranks_;
};

// Entries of one named object in a section that holds all of them: "NAME/ENTRY". Throw as
// expect_places() for keys of the file. file: where the entries come from.
void add_named(PickleDict& section, const std::string& name, const PickleDict& entries,
               const std::string& file);
PickleDict part_named(const PickleDict& section, const std::string& name, const std::string& file);

// Returns the gradients of all models of the state, by the name of the parameter.
PickleDict gradients_of(const TrainingState& state);
// Gives every parameter the gradient that the dict has for it, or none. Throws kInvalidArgument
// that names `file`.
void load_gradients(torch::nn::Module& model, const PickleDict& gradients, const std::string& file);

}  // namespace ddprun
