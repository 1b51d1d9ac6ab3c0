// ReduceOp: how a reducing collective combines two elements. Value type.
#pragma once

#include <cstdint>

namespace ddprun {

// The operations, and the dtypes that they are for:
// - kAvg is the sum divided by the number of ranks, for floating-point and complex types only.
// - The bitwise ones are for integers and bool.
// - On bool, kSum and kMax are "or", kProduct and kMin are "and", as in PyTorch.
// - Complex types have only kSum, kAvg and kPremulSum: they have no order, and products are not
//   supported here.
// - kPremulSum, for floating-point and complex types, is a sum in which each rank first
//   multiplies its own elements by its factor (rounded to the dtype).
enum class ReduceOp : std::uint8_t {
  kSum,
  kAvg,
  kProduct,
  kMin,
  kMax,
  kBitAnd,
  kBitOr,
  kBitXor,
  kPremulSum,
};

constexpr const char* to_text(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum: return "sum";
    case ReduceOp::kAvg: return "avg";
    case ReduceOp::kProduct: return "product";
    case ReduceOp::kMin: return "min";
    case ReduceOp::kMax: return "max";
    case ReduceOp::kBitAnd: return "band";
    case ReduceOp::kBitOr: return "bor";
    case ReduceOp::kBitXor: return "bxor";
    case ReduceOp::kPremulSum: return "premul_sum";
  }
  return "?";
}

}  // namespace ddprun
