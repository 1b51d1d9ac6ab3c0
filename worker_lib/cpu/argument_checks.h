// Checks of a collective's arguments that need nothing but this rank, made before anything is sent.
// All return kInvalidArgument with one line that says what would be right. Pure functions.
#pragma once

#include <cstddef>

#include "base/ids.h"
#include "base/result.h"
#include "ddprun/reduce_op.h"
#include "worker_lib/cpu/element_type.h"

namespace ddprun {

Result<void> check_operation(ElementType type, ReduceOp op);
Result<void> check_root(const char* collective, Rank root, int size);
// what: "inputs" or "outputs".
Result<void> check_one_per_rank(const char* collective, const char* what, std::size_t given,
                                int wanted);
Result<void> check_partner(const char* call, Rank partner, int rank, int size);

}  // namespace ddprun
