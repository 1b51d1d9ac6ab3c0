// Collects the tensors in the result of a module's forward, at any depth.
//
// Supported: tensors, c10::IValue, anything with begin() and end() (vectors, arrays, maps,
// torch::OrderedDict), pairs and tuples, pointers and optionals, and nestings of these. Another
// type is supported if a function in its namespace lists its parts:
//
//   struct Output { torch::Tensor logits, hidden; };
//   template <class Visit>
//   void visit_parts(const Output& output, Visit visit) {
//     visit(output.logits);
//     visit(output.hidden);
//   }
//
// Any other type has no tensors. Pure functions; any thread.
#pragma once

#include <ATen/core/ivalue.h>
#include <torch/types.h>

#include <concepts>
#include <iterator>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

namespace ddprun {
namespace detail {

template <class T>
concept Nesting = !std::convertible_to<const T&, std::string_view> && requires(const T& value) {
  std::begin(value);
  std::end(value);
};

template <class T>
concept TupleLike = requires {
  std::tuple_size<T>::value;
};

template <class T>
concept PointerLike = !std::is_arithmetic_v<T> && !std::is_array_v<T> && requires(const T& value) {
  static_cast<bool>(value);
  *value;
};

template <class T>
concept DictItem = requires(const T& item) {
  item.key();
  item.value();
};

template <class T>
concept HasParts = requires(const T& value) {
  visit_parts(value, [](const auto&) {});
};

inline void collect_from_ivalue(const c10::IValue& value, std::vector<torch::Tensor>& to) {
  if (value.isTensor()) to.push_back(value.toTensor());
  if (value.isTuple())
    for (const c10::IValue& element : value.toTupleRef().elements())
      collect_from_ivalue(element, to);
  if (value.isList())
    for (const c10::IValue& element : value.toListRef()) collect_from_ivalue(element, to);
  if (value.isGenericDict())
    for (const auto& entry : value.toGenericDict()) collect_from_ivalue(entry.value(), to);
}

template <class T>
void collect_tensors(const T& value, std::vector<torch::Tensor>& to) {
  if constexpr (std::convertible_to<const T&, const torch::Tensor&>) {
    const torch::Tensor& tensor = value;
    if (tensor.defined()) to.push_back(tensor);
  } else if constexpr (std::same_as<T, c10::IValue>) {
    collect_from_ivalue(value, to);
  } else if constexpr (HasParts<T>) {
    visit_parts(value, [&](const auto& part) { collect_tensors(part, to); });
  } else if constexpr (DictItem<T>) {
    collect_tensors(value.value(), to);
  } else if constexpr (TupleLike<T>) {
    std::apply([&](const auto&... parts) { (collect_tensors(parts, to), ...); }, value);
  } else if constexpr (Nesting<T>) {
    for (const auto& element : value) collect_tensors(element, to);
  } else if constexpr (PointerLike<T>) {
    if constexpr (!std::is_void_v<std::remove_reference_t<decltype(*value)>>)
      if (value) collect_tensors(*value, to);
  }
}

}  // namespace detail

template <class T>
std::vector<torch::Tensor> tensors_in(const T& value) {
  std::vector<torch::Tensor> tensors;
  detail::collect_tensors(value, tensors);
  return tensors;
}

}  // namespace ddprun
