// Which leaves an autograd graph leads to.
//
// Pure functions of the graph; any thread, as long as nobody changes it.
#pragma once

#include <torch/csrc/autograd/function.h>
#include <torch/types.h>

#include <span>
#include <unordered_map>
#include <vector>

namespace ddprun {

// By gradient accumulator: its index.
using AccumulatorIndex = std::unordered_map<const torch::autograd::Node*, std::size_t>;

// For each index of `accumulators`: whether a backward pass from `outputs` can reach it. Every node
// is visited once.
std::vector<char> reachable_from(std::span<const torch::Tensor> outputs,
                                 const AccumulatorIndex& accumulators);

}  // namespace ddprun
