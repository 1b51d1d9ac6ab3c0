// An optimizer's state as the dict that Python's optimizer of the same name loads, and back.
//
//   {"state": {i: {...}}, "param_groups": [{"params": [i, ...], "lr": ..., ...}]}
//
// i counts the parameters over all groups in order. C++ keys its state by pointer, and keeps some
// counts as integers that Python keeps as tensors; both are translated here. SGD, Adam, AdamW,
// RMSprop, Adagrad, Adadelta (ours) and LBFGS; the others are refused by name (kUnsupported).
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

// "SGD", "Adam", ...: Python's name of the class. It is not in the state, neither Python's nor
// ours.
std::string optimizer_class(const torch::optim::Optimizer& optimizer);

// Of an optimizer whose state is dealt out to the ranks: this rank's share of it.
// keeps: whether the state of the i-th parameter is wanted; empty: all are.
PickleDict optimizer_state(const torch::optim::Optimizer& optimizer,
                           const std::function<bool(std::size_t)>& keeps = {});

// The rank that has the state of each parameter, if the state is dealt out to the ranks.
std::optional<std::vector<int>> owners_of_states(const torch::optim::Optimizer& optimizer);

// The entry "state" of all ranks together, on rank 0, if the optimizer's state is dealt out to the ranks; this
// is a collective call then. Nothing otherwise.
std::optional<PickleDict> gather_optimizer_states(const torch::optim::Optimizer& optimizer);

// `state` must come from an optimizer of the same class. Of an optimizer whose state is dealt out each rank takes
// its share. Throws kInvalidArgument, naming `file`,
// when it belongs to other parameters, kCorrupt when a field is missing.
void load_optimizer_state(torch::optim::Optimizer& optimizer, const c10::IValue& state,
                          const std::string& file);

}  // namespace ddprun
