// The arithmetic of batch normalization on one rank's tensors, between the exchanges of SyncBatchNorm.
//
// Every sum and every intermediate value is float64; what has the shape of the input is rounded to its
// dtype once. Tensors on a CPU whose channels lie in long planes (float or double, contiguous) go through
// core/channel_loops, everything else (16-bit, other memory formats, other devices) through LibTorch's
// functions, block by block. Vectors with a value for each channel are float64, on the input's device.
//
// Pure functions; any thread, without recording gradients.
#pragma once

#include <torch/types.h>

#include <span>

#include "worker_lib/core/moments.h"

namespace ddprun {

// The values of a contiguous float64 tensor on the CPU, which must outlive them.
std::span<const double> values_of(const torch::Tensor& float64_on_cpu);

Moments moments_of(const torch::Tensor& input);

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
