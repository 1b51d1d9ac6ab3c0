// Facts about tensors that several rooms print or send in the same form. Pure functions; any
// thread.
#pragma once

#include <torch/types.h>
#include <torch/version.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <sstream>
#include <string>
#include <vector>

#include "base/assert.h"
#include "ddprun/backend.h"
#include "worker_lib/collective/call_header.h"
#include "worker_lib/collective/element_type.h"

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

// The dtypes that collectives support, by the number of their ElementType.
inline constexpr std::array kCollectiveDtypes {
  torch::kBool, torch::kUInt8, torch::kInt8, torch::kInt16, torch::kInt32, torch::kInt64,
      torch::kFloat16, torch::kBFloat16, torch::kFloat32, torch::kFloat64, torch::kComplexFloat,
      torch::kComplexDouble, torch::kUInt16, torch::kUInt32, torch::kUInt64, torch::kFloat8_e5m2,
      torch::kFloat8_e4m3fn, torch::kFloat8_e5m2fnuz, torch::kFloat8_e4m3fnuz,
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 7
      torch::kFloat8_e8m0fnu,
#endif
};
static_assert(kCollectiveDtypes[static_cast<int>(ElementType::kC128)] == torch::kComplexDouble &&
              kCollectiveDtypes[static_cast<int>(ElementType::kF8E4M3Fnuz)] ==
                  torch::kFloat8_e4m3fnuz);

// For each dtype its place in kCollectiveDtypes; -1: collectives do not support it.
inline constexpr auto kPlaceOfDtype = [] {
  std::array<std::int8_t, static_cast<std::size_t>(torch::ScalarType::NumOptions)> places;
  places.fill(-1);
  for (std::size_t i = 0; i < kCollectiveDtypes.size(); ++i)
    places[static_cast<std::size_t>(kCollectiveDtypes[i])] = static_cast<std::int8_t>(i);
  return places;
}();

constexpr bool is_collective_dtype(torch::ScalarType type) {
  return kPlaceOfDtype[static_cast<std::size_t>(type)] >= 0;
}

// Returns the CPU engine's name for the dtype. REQUIRES: is_collective_dtype().
inline ElementType element_type_of(torch::ScalarType type) {
  DDPRUN_ASSERT(is_collective_dtype(type), "ProcessGroup has checked the dtype");
  return static_cast<ElementType>(kPlaceOfDtype[static_cast<std::size_t>(type)]);
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
