// What a reducing collective does with two elements. Value type.
#pragma once

#include <cstdint>

namespace ddprun {

// kAvg is the sum divided by the number of ranks, for floating-point and complex types only. The
// bitwise ones are for integers and bool. On bool, kSum and kMax are "or", kProduct and kMin "and", as
// in PyTorch. Complex numbers have no order, and their product none here: kSum, kAvg and kPremulSum are
// for them. kPremulSum, for floating-point and complex types, is the sum of what the ranks have after
// each has multiplied its own by its factor (rounded to the dtype).
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
