// Clips gradients to a global norm, in place: gradients that lie in DDP's buckets stay there.
//
//   loss.backward();                     // averages the gradients
//   ddp.clip_grad_norm_(1.0);            // after the last pass of an accumulation
//   optimizer.step();
//
// With DDP use DistributedDataParallel's function of this name: it refuses gradients that have
// not been averaged. Every rank clips by the same norm without any communication, because
// averaged gradients are equal.
#pragma once

#include <torch/types.h>

#include <vector>

namespace ddprun {

// Multiplies all gradients by min(1, max_norm / (norm + 1e-6)), where norm is the `norm_type`
// norm of all gradients as one vector. Returns the norm before clipping: a tensor without
// dimensions on the device of the first gradient, float64 if any gradient is, else float32. Does
// not wait for a device, unless error_if_nonfinite is set. Parameters without a gradient are
// skipped; the norm is 0 if none has one. Gradients may be sparse, and of several dtypes and
// devices. Norms of 16-bit gradients are computed in float32.
//
// max_norm: at least 0. norm_type: above 0, or infinity for the largest absolute value. Throws
// kInvalidArgument for other values. With error_if_nonfinite, throws kCorrupt if the norm is
// infinite or NaN; gradients are then unchanged. Without it NaNs spread, as in PyTorch. The
// thread that trains calls it. Method: Pascanu, Mikolov and Bengio, "On the difficulty of
// training recurrent neural networks", 2013; torch.nn.utils.clip_grad_norm_.
torch::Tensor clip_grad_norm_(const std::vector<torch::Tensor>& parameters, double max_norm,
                              double norm_type = 2.0, bool error_if_nonfinite = false);

}  // namespace ddprun
