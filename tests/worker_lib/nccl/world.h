// Makes nccl groups on the double, for tests.
#pragma once

#include "tests/support/torch.h"
#include "tests/worker_lib/nccl/double.h"
#include "tests/worker_lib/nccl/ranks.h"

namespace ddprun {

struct NcclDoubleWorld {
  explicit NcclDoubleWorld(NcclVersion version = NcclVersion::k2_30_7) : cuda(version) {}

  NcclDouble cuda;
  NcclRanks ranks{NcclDouble::api(), torch::kCPU};
  NcclRanks old_ranks{NcclDouble::old_api(), torch::kCPU};
};

// Returns the same memory as a tensor of a CUDA device. It is made by hand, because LibTorch
// would ask CUDA. `host` must outlive it.
inline torch::Tensor on_device(int device, const torch::Tensor& host) {
  c10::DataPtr data(host.mutable_data_ptr(), torch::Device(torch::kCUDA, device));
  c10::Storage storage(c10::Storage::use_byte_size_t(), host.nbytes(), std::move(data));
  torch::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CUDA), host.dtype());
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous(host.sizes());
  return tensor;
}

}  // namespace ddprun
