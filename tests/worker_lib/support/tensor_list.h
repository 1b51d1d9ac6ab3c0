// Makes lists of one tensor, the form that backends take.
#pragma once

#include "ddprun/backend.h"

namespace ddprun {

// Returns a list of one tensor. `tensor` must outlive the list.
inline TensorList list_of_one(const torch::Tensor& tensor) { return {&tensor, 1}; }

}  // namespace ddprun
