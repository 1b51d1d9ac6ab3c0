// All reductions, for tests that try each of them.
#pragma once

#include "ddprun/reduce_op.h"

namespace ddprun {

inline constexpr ReduceOp kReduceOps[] = {ReduceOp::kSum,   ReduceOp::kAvg,   ReduceOp::kProduct,
                                          ReduceOp::kMin,   ReduceOp::kMax,   ReduceOp::kBitAnd,
                                          ReduceOp::kBitOr, ReduceOp::kBitXor};

}  // namespace ddprun
