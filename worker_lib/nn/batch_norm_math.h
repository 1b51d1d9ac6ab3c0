// The arithmetic of batch normalization on one rank's tensors, between the exchanges of
// SyncBatchNorm.
//
// Every sum and every intermediate value has the dtype of the per-channel vectors. Results in
// the shape of the input are rounded to its dtype once. On a CPU the vectors are float64.
// Tensors whose channels lie in long planes (float or double, contiguous) use
// core/channel_loops; all others (16-bit, other memory formats) use LibTorch's functions, block
// by block. On other devices the vectors are float32, or float64 for a float64 input, on the
// input's device. No function here waits for the device.
//
// Pure functions; any thread, without recording gradients.
#pragma once

#include <torch/types.h>

#include <span>

#include "worker_lib/nn/core/moments.h"

namespace ddprun {

// Returns the values of a contiguous float64 tensor on the CPU, which must outlive them.
std::span<const double> values_of(const torch::Tensor& float64_on_cpu);

// Returns the moments of an input on the CPU.
Moments moments_of(const torch::Tensor& input);

// Returns [2C + 2], for inputs on other devices: the means, the sums of squared distances from
// them, the number of values of a channel, and `flag`. The dtype is that of the vectors.
torch::Tensor moments_row(const torch::Tensor& input, double flag);

// The moments of all ranks' batches together, from their rows, [ranks, 2C + 2]. count has no
// dimensions.
struct CombinedMoments {
  torch::Tensor mean, squares, count;
};
CombinedMoments combined_moments(const torch::Tensor& rows);

// Returns (x - mean) * scale + bias.
torch::Tensor normalized(const torch::Tensor& input, const torch::Tensor& mean,
                         const torch::Tensor& scale, const torch::Tensor& bias);

// Returns [2, C]: the sums of g, and of g * (x - mean). `gradient` is like `input`, in any
// layout.
torch::Tensor gradient_sums(const torch::Tensor& gradient, const torch::Tensor& input,
                            const torch::Tensor& mean);

// Returns (g - constant - (x - mean) * slope) * scale.
torch::Tensor input_gradient(const torch::Tensor& gradient, const torch::Tensor& input,
                             const torch::Tensor& mean, const torch::Tensor& scale,
                             const torch::Tensor& constant, const torch::Tensor& slope);

}  // namespace ddprun
