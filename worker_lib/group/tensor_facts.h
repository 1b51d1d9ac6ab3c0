// Facts about tensors that several rooms print or send in the same form. Pure functions; any
// thread.
#pragma once

#include <torch/types.h>
#include <torch/version.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <sstream>
#include <string>
#include <vector>

#include "base/assert.h"
#include "ddprun/backend.h"
#include "worker_lib/collective/call_header.h"
#include "worker_lib/collective/element_type.h"

#define DDPRUN_HAS_FLOAT8_E8M0 (TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 7)

namespace ddprun {

// Returns the output of <<: "[2, 3]" for sizes or strides.
template <class T>
std::string text_of(const T& value) {
  std::ostringstream text;
  text << value;
  return text.str();
}

// Returns "Float of shape [2, 3]".
inline std::string dtype_and_shape(const torch::Tensor& tensor) {
  return std::string(c10::toString(tensor.scalar_type())) + " of shape " + text_of(tensor.sizes());
}

inline TensorList list_of(const torch::Tensor& one) { return {&one, 1}; }

inline std::size_t count_of(const torch::Tensor& tensor) { return tensor.numel(); }

// Returns the CPU engine's name for the dtype. REQUIRES: a dtype that collectives support.
inline ElementType element_type_of(torch::ScalarType type) {
  switch (type) {
    case torch::kBool: return ElementType::kBool;
    case torch::kUInt8: return ElementType::kU8;
    case torch::kInt8: return ElementType::kI8;
    case torch::kInt16: return ElementType::kI16;
    case torch::kInt32: return ElementType::kI32;
    case torch::kInt64: return ElementType::kI64;
    case torch::kFloat16: return ElementType::kF16;
    case torch::kBFloat16: return ElementType::kBF16;
    case torch::kFloat32: return ElementType::kF32;
    case torch::kFloat64: return ElementType::kF64;
    case torch::kComplexFloat: return ElementType::kC64;
    case torch::kComplexDouble: return ElementType::kC128;
    case torch::kUInt16: return ElementType::kU16;
    case torch::kUInt32: return ElementType::kU32;
    case torch::kUInt64: return ElementType::kU64;
    case torch::kFloat8_e5m2: return ElementType::kF8E5M2;
    case torch::kFloat8_e4m3fn: return ElementType::kF8E4M3;
    case torch::kFloat8_e5m2fnuz: return ElementType::kF8E5M2Fnuz;
    case torch::kFloat8_e4m3fnuz: return ElementType::kF8E4M3Fnuz;
#if DDPRUN_HAS_FLOAT8_E8M0
    case torch::kFloat8_e8m0fnu: return ElementType::kF8E8M0;
#endif
    default: DDPRUN_ASSERT(false, "ProcessGroup has checked the dtype");
  }
}

inline ElementType element_type_of(const torch::Tensor& tensor) {
  return element_type_of(tensor.scalar_type());
}

// Element type of the tensors of a call; if they have several dtypes, a digest of all of them.
struct ContentFacts {
  ElementType type = ElementType::kU8;
  std::uint32_t types = 0;
};

inline ContentFacts content_of(TensorList tensors) {
  if (tensors.empty()) return {};
  const torch::ScalarType first = tensors[0].scalar_type();
  const auto is_like_first = [first](const auto& one) { return one.scalar_type() == first; };
  if (std::ranges::all_of(tensors, is_like_first)) return {.type = element_type_of(first)};
  std::vector<std::size_t> types;
  for (const torch::Tensor& one : tensors)
    types.push_back(static_cast<std::size_t>(element_type_of(one)));
  return {.types = digest_of(types)};
}

}  // namespace ddprun
