// Converts an optimizer's state to the dict that Python's optimizer of the same name loads, and
// back.
//
//   {"state": {i: {...}}, "param_groups": [{"params": [i, ...], "lr": ..., ...}]}
//
// i counts the parameters over all groups in order. C++ keys its state by pointer, and keeps
// some counts as integers that are tensors in Python; both are translated here. Supported: SGD,
// Adam, AdamW, RMSprop, Adagrad, Adadelta (ours) and LBFGS. Others are refused by name
// (kUnsupported).
//
// Free functions; the optimizer's owner thread calls them.
#pragma once

#include <torch/optim/optimizer.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "worker_lib/serialization/checkpoint_state.h"

namespace ddprun {

// Returns Python's name of the class: "SGD", "Adam", ... The name is in neither Python's nor our
// state.
std::string optimizer_class(const torch::optim::Optimizer& optimizer);

// Returns the state. Of an optimizer whose state is sharded over the ranks: this rank's share.
// keeps: selects the i-th parameter's state; empty: all. old: the entry "state" of an earlier
// result, to refill (refilled_dict.h).
PickleDict optimizer_state(const torch::optim::Optimizer& optimizer,
                           const std::function<bool(std::size_t)>& keeps = {},
                           const TensorForFile& for_file = tensor_for_file,
                           std::optional<PickleDict> old = {});

// Returns whether the state is sharded over the ranks.
bool is_sharded(const torch::optim::Optimizer& optimizer);
// Returns whether this rank of the world has a shard of the state that this rank has a shard of.
// Without shards: true.
bool has_shard(const torch::optim::Optimizer& optimizer, int world_rank);

// Returns for each parameter whether this rank keeps its state. Without shards: all of them.
std::vector<bool> keeps_states(const torch::optim::Optimizer& optimizer);

// Returns the entry "state" of all ranks together, on rank 0, if the optimizer's state is
// sharded over the ranks. The call is then collective. Otherwise nullopt.
std::optional<PickleDict> gather_optimizer_states(const torch::optim::Optimizer& optimizer);

// Loads a state of an optimizer of the same class. If the optimizer's state is sharded, each
// rank takes its share. Throws kInvalidArgument, with the name of `file`, if the state belongs
// to other parameters, and kCorrupt if a field is missing.
void load_optimizer_state(torch::optim::Optimizer& optimizer, const c10::IValue& state,
                          const std::string& file);

}  // namespace ddprun
