// Lists of one tensor, as backends take them.
#pragma once

#include "ddprun/backend.h"

namespace ddprun {

// `tensor` must outlive it.
inline TensorList list_of_one(const torch::Tensor& tensor) { return {&tensor, 1}; }

}  // namespace ddprun
