// QueueDevice: a LibTorch device for machines without a GPU. Its memory is ordinary memory. Its
// streams are threads that run their tasks in order, at any later time. So code that does not
// wait for a stream reads too early on this device, too. Memory is freed at once, unless other
// streams were recorded as its users; then it is freed after their tasks.
//
// Tensors are on torch::kPrivateUse1, which has no operations except copies and views. Any
// thread.
#pragma once

#include <torch/types.h>

namespace ddprun {

class QueueDevice {
 public:
  // Creates the device and returns it. Call it before anything else.
  static torch::Device install();

  // Copy to the device and back. Both wait for the calling thread's current stream.
  static torch::Tensor put(const torch::Tensor& host);
  static torch::Tensor get(const torch::Tensor& device);

  // Waits for all streams.
  static void drain();

  // Stops the calling thread's current stream until open_stream() is called.
  static void close_stream();
  static void open_stream();
};

}  // namespace ddprun
