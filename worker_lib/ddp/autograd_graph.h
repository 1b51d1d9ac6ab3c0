// Finds the leaves that an autograd graph leads to.
//
// Pure functions of the graph; any thread, as long as no thread changes it.
#pragma once

#include <torch/csrc/autograd/function.h>
#include <torch/types.h>

#include <span>
#include <unordered_map>
#include <vector>

namespace ddprun {

// Index of a parameter by its gradient accumulator.
using AccumulatorIndex = std::unordered_map<const torch::autograd::Node*, std::size_t>;

// Returns for each index of `accumulators` whether a backward pass from `outputs` can reach it.
// Visits every node once.
std::vector<char> reachable_from(std::span<const torch::Tensor> outputs,
                                 const AccumulatorIndex& accumulators);

}  // namespace ddprun
