// QueueDevice: a device of LibTorch's for machines that have none. Its memory is ordinary memory, its
// streams are threads that carry out one thing after the other, whenever they get to it; so what does not
// wait for a stream reads too early here, too. Memory that is freed is gone at once, except for streams
// that were named to it.
//
// Tensors are on torch::kPrivateUse1, which knows no operations but copies and views. Any thread.
#pragma once

#include <torch/types.h>

namespace ddprun {

class QueueDevice {
 public:
  // The device that LibTorch then has; call before anything else.
  static torch::Device install();

  // A copy there and back, which waits for the calling thread's current stream.
  static torch::Tensor put(const torch::Tensor& host);
  static torch::Tensor get(const torch::Tensor& device);

  // Waits for all streams.
  static void drain();

  // The calling thread's current stream does nothing more until open_stream() is called.
  static void close_stream();
  static void open_stream();
};

}  // namespace ddprun
