// The average over ranks of gradients in coordinate format, as embeddings make them.
#pragma once

#include <torch/types.h>

#include <optional>
#include <vector>

#include "ddprun/process_group.h"

namespace ddprun {

// A collective call. mine: sparse COO tensors on the group's device, as many on every rank, of the
// same shapes. Returns, for each, a coalesced tensor with every index that any rank's has; the same
// bits on every rank: the values are summed in rank order and then divided by `divisor`.
// Two all_gathers; each rank's share is padded to the longest one's length. Throws as collectives.
std::vector<torch::Tensor> average_sparse(const std::vector<torch::Tensor>& mine, int divisor,
                                          ProcessGroup& group, std::optional<Timeout> timeout);

}  // namespace ddprun
