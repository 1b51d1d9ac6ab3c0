// Averages gradients in coordinate format, as embeddings make them, over ranks.
#pragma once

#include <torch/types.h>

#include <optional>
#include <vector>

#include "ddprun/process_group.h"

namespace ddprun {

// Returns the averages; a collective call. mine: sparse COO tensors on the group's device, the
// same number on every rank, of the same shapes. Each result is a coalesced tensor with every
// index that any rank's tensor has. It has the same bits on every rank: the values are summed in
// rank order and then divided by `divisor`. Uses two all_gathers; each rank's share is padded to
// the longest one's length. Throws as collectives.
std::vector<torch::Tensor> average_sparse(const std::vector<torch::Tensor>& mine, int divisor,
                                          ProcessGroup& group, std::optional<Timeout> timeout);

}  // namespace ddprun
