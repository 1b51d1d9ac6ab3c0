// Maps reductions to NCCL's types and operations. Pure functions; any thread.
#pragma once

#include <torch/types.h>

#include <array>

#include "base/result.h"
#include "ddprun/backend.h"
#include "worker_lib/nccl/api.h"

namespace ddprun {

struct NcclReduction {
  NcclType type = NcclType::kUint8;
  NcclOp op = NcclOp::kSum;
  int values = 1;                   // of the type in an element: a complex number has two
  std::array<char, 8> factor = {};  // one value of the type
  bool is_premul = false;           // `op` must be made from the factor
};

// Returns NCCL's reduction; kUnsupported if there is none.
Result<NcclReduction> nccl_reduction(const char* call, const Reduction& how,
                                     torch::ScalarType type);

}  // namespace ddprun
