// The arithmetic of batch normalization on one rank's tensors, between the exchanges of SyncBatchNorm.
//
// Every sum and every intermediate value has the dtype of the vectors with a value for each channel; what has the
// shape of the input is rounded to its dtype once. On a CPU they are float64: tensors whose channels lie in long
// planes (float or double, contiguous) go through core/channel_loops, everything else (16-bit, other memory
// formats) through LibTorch's functions, block by block. On other devices they are float32, or float64 for a
// float64 input, on the input's device, and nothing here waits for the device.
//
// Pure functions; any thread, without recording gradients.
#pragma once

#include <torch/types.h>

#include <span>

#include "worker_lib/nn/core/moments.h"

namespace ddprun {

// The values of a contiguous float64 tensor on the CPU, which must outlive them.
std::span<const double> values_of(const torch::Tensor& float64_on_cpu);

// Of an input on the CPU.
Moments moments_of(const torch::Tensor& input);

// For inputs on other devices: [2C + 2], the means, the sums of squared distances from them, the number of values
// of a channel, and `flag`. Its dtype is that of the vectors.
torch::Tensor moments_row(const torch::Tensor& input, double flag);

// The moments of all ranks' batches together, of their rows, [ranks, 2C + 2]. count has no dimensions.
struct CombinedMoments {
  torch::Tensor mean, squares, count;
};
CombinedMoments combined_moments(const torch::Tensor& rows);

// (x - mean) * scale + bias.
torch::Tensor normalized(const torch::Tensor& input, const torch::Tensor& mean,
                         const torch::Tensor& scale, const torch::Tensor& bias);

// [2, C]: the sums of g, and of g * (x - mean). `gradient` is like `input`, in any layout.
torch::Tensor gradient_sums(const torch::Tensor& gradient, const torch::Tensor& input,
                            const torch::Tensor& mean);

// (g - constant - (x - mean) * slope) * scale.
torch::Tensor input_gradient(const torch::Tensor& gradient, const torch::Tensor& input,
                             const torch::Tensor& mean, const torch::Tensor& scale,
                             const torch::Tensor& constant, const torch::Tensor& slope);

}  // namespace ddprun
