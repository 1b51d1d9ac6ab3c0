// What of a training's state each rank has of its own, in a checkpoint that is rank 0's otherwise:
// buffers that no rank broadcasts, parameters and optimizer state of ranks that drift apart on
// purpose, what a communication hook carries, gradients in the middle of an accumulation.
//
// In the file:
//
//   "ranks": [{}, {"model": {name: tensor}, "optimizer": {i: {...}}, "comm_hook": {name: tensor},
//                  "gradients": {name: tensor}}, ...]
//
// What TrainingState names has sections "models", "optimizers" and "tensors", with keys "NAME/ENTRY" (of
// tensors "NAME"); gradients of named models have such keys in "gradients".
//
// Element r is rank r's: sections with what is not equal, bit for bit, to rank 0's, which stands
// under the file's other keys. None: rank 0 has it and this rank has not. Where nothing differs the
// key is missing.
//
// The ranks find out by hashes (one number of each rank, and a table only if these differ), so that
// what is equal on all of them is neither sent nor written twice. Free functions; the thread of the
// group's calls.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ddprun/checkpoint.h"
#include "worker_lib/collective/core/divergence.h"
#include "worker_lib/serialization/checkpoint_state.h"

namespace ddprun {

// Whether the ranks may have other parameters than rank 0.
bool may_differ_anywhere(const TrainingState& state);

// Sections of what may differ from rank to rank; tensors share memory with the live ones where
// those are on the CPU. kUnsupported: a sparse gradient.
PickleDict own_state(const TrainingState& state);

// Of every entry of the sections.
std::vector<NamedHash> hashes_of(const PickleDict& own);

// The entries that are not rank 0's.
PickleDict differences(const PickleDict& own, const std::vector<NamedHash>& of_rank_0);

// A checkpoint as one rank of a world of so many sees it.
class RankView {
 public:
  // top: of the file `file`.
  RankView(const c10::IValue& top, int rank, int world_size, std::string file);

  // The world that saved has as many ranks: each gets what it had.
  bool is_same_world() const { return saved_world_ == world_size_; }
  bool has_own() const { return !ranks_.empty(); }

  // The section of this rank, whose rank 0 has `of_rank_0`. In a world of another size rank 0's.
  PickleDict section(const std::string& key, const PickleDict& of_rank_0) const;
  // The same of tensors that are sums in the making; in a world of another size their average over
  // the ranks that there were, so that the average over the ranks stays what it was.
  PickleDict averaged_section(const std::string& key, const PickleDict& of_rank_0) const;

 private:
  PickleDict of_rank(int rank, const std::string& key, const PickleDict& of_rank_0) const;

  int rank_;
  int world_size_;
  int saved_world_;
  std::string file_;
  std::vector<c10::IValue> ranks_;
};

// The entries of a named part in a section that holds those of all: "NAME/ENTRY".
void add_named(PickleDict& section, const std::string& name, const PickleDict& entries);
PickleDict part_named(const PickleDict& section, const std::string& name);

// Gradients by name of the parameter.
PickleDict gradients_of(const torch::nn::Module& model);
// Of all models of the state.
PickleDict gradients_of(const TrainingState& state);
// Every parameter gets the gradient that the dict has for it, or none. Throws kInvalidArgument that
// names `file`.
void load_gradients(torch::nn::Module& model, const PickleDict& gradients, const std::string& file);

}  // namespace ddprun
