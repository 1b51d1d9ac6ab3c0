#include "worker_lib/nccl/reduction.h"

#include <cstring>

#include "base/concat.h"

namespace ddprun {
namespace {

// Returns the type to reduce as; nullopt if NCCL has none. Complex numbers are pairs of real
// ones.
std::optional<NcclType> reducible_type(torch::ScalarType type) {
  switch (type) {
    case torch::kBool:
    case torch::kUInt8: return NcclType::kUint8;
    case torch::kInt8: return NcclType::kInt8;
    case torch::kInt32: return NcclType::kInt32;
    case torch::kInt64: return NcclType::kInt64;
    case torch::kFloat16: return NcclType::kFloat16;
    case torch::kBFloat16: return NcclType::kBfloat16;
    case torch::kFloat32:
    case torch::kComplexFloat: return NcclType::kFloat32;
    case torch::kFloat64:
    case torch::kComplexDouble: return NcclType::kFloat64;
    default: return std::nullopt;
  }
}

// A bool travels as the byte 0 or 1, so "or" is the maximum and "and" the minimum.
std::optional<NcclOp> nccl_op(ReduceOp op, torch::ScalarType type) {
  const bool is_bool = type == torch::kBool;
  switch (op) {
    case ReduceOp::kSum: return is_bool ? NcclOp::kMax : NcclOp::kSum;
    case ReduceOp::kProduct: return is_bool ? NcclOp::kMin : NcclOp::kProd;
    case ReduceOp::kMin: return NcclOp::kMin;
    case ReduceOp::kMax: return NcclOp::kMax;
    case ReduceOp::kAvg: return NcclOp::kAvg;
    case ReduceOp::kPremulSum: return NcclOp::kSum;  // the premultiplied operation is made from it
    case ReduceOp::kBitAnd: return is_bool ? std::optional(NcclOp::kMin) : std::nullopt;
    case ReduceOp::kBitOr: return is_bool ? std::optional(NcclOp::kMax) : std::nullopt;
    case ReduceOp::kBitXor: return std::nullopt;
  }
  return std::nullopt;
}

std::array<char, 8> bytes_of_factor(double factor, NcclType type) {
  std::array<char, 8> bytes{};
  const auto put = [&](auto value) { std::memcpy(bytes.data(), &value, sizeof value); };
  switch (type) {
    case NcclType::kFloat16: put(c10::Half(static_cast<float>(factor))); break;
    case NcclType::kBfloat16: put(c10::BFloat16(static_cast<float>(factor))); break;
    case NcclType::kFloat32: put(static_cast<float>(factor)); break;
    case NcclType::kFloat64: put(factor); break;
    default: DDPRUN_ASSERT(false, "ProcessGroup has checked that the dtype has fractions");
  }
  return bytes;
}

}  // namespace

Result<NcclReduction> nccl_reduction(const char* call, const Reduction& how,
                                     torch::ScalarType type) {
  const std::optional<NcclType> nccl_type = reducible_type(type);
  const std::optional<NcclOp> op = nccl_op(how.op, type);
  if (nccl_type && op) {
    NcclReduction as{.type = *nccl_type, .op = *op, .values = torch::isComplexType(type) ? 2 : 1};
    as.is_premul = how.op == ReduceOp::kPremulSum;
    if (as.is_premul) as.factor = bytes_of_factor(how.factor, as.type);
    return as;
  }
  return Error{.kind = ErrorKind::kUnsupported,
               .doing = call,
               .cause = concat("the nccl backend has no ", to_text(how.op), " of ",
                               c10::toString(type), "; use another dtype or the cpu backend")};
}

}  // namespace ddprun
