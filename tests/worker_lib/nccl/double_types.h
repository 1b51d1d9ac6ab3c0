// Maps NCCL's types to LibTorch's, for NcclDouble.
#pragma once

#include "tests/support/torch.h"
#include "worker_lib/nccl/api.h"

namespace ddprun {

inline torch::ScalarType torch_type(NcclType type) {
  switch (type) {
    case NcclType::kInt8: return torch::kInt8;
    case NcclType::kUint8: return torch::kUInt8;
    case NcclType::kInt32: return torch::kInt32;
    case NcclType::kInt64: return torch::kInt64;
    case NcclType::kFloat16: return torch::kFloat16;
    case NcclType::kFloat32: return torch::kFloat32;
    case NcclType::kFloat64: return torch::kFloat64;
    case NcclType::kBfloat16: return torch::kBFloat16;
  }
  throw std::logic_error("no such NcclType");
}

inline torch::Tensor view(const void* data, std::size_t count, NcclType type) {
  return torch::from_blob(const_cast<void*>(data), {static_cast<std::int64_t>(count)},
                          torch_type(type));
}

}  // namespace ddprun
