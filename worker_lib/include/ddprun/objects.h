// The object forms of collectives for types that torch::save can write: tensors, lists of
// tensors, modules, optimizers. Also for c10::IValue (numbers, strings, tuples, lists and
// dictionaries of those and of tensors), in the format that Python's torch.load reads.
// ProcessGroup itself has them for JSON values.
//
// They block, and every rank calls the same function. The timeout covers the whole exchange; the
// default is the group's. Tensors arrive on the device that they came from, as with torch::load.
// They throw DistError as collectives do. kInvalidArgument: this rank's value cannot be written
// (an undefined tensor); nothing is sent then. kCorrupt: the received bytes cannot be read as T.
#pragma once

#include <torch/csrc/jit/serialization/pickle.h>
#include <torch/serialize.h>

#include <concepts>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "ddprun/process_group.h"

namespace ddprun {

// TorchObject: types that torch::save and torch::load accept, and IValue.
template <class T>
concept TorchObject = std::same_as<T, c10::IValue> ||
    (!std::convertible_to<T, nlohmann::json> &&
     requires(const T& saved, T& loaded, std::ostream& out, std::istream& in) {
       torch::save(saved, out);
       torch::load(loaded, in);
     });

namespace detail {

// Throw DistError with the current exception as the reason, without LibTorch's backtrace.
[[noreturn]] void refuse_to_write_object();
[[noreturn]] void refuse_to_read_object();

template <TorchObject T>
std::string to_bytes(const T& value) {
  try {
    if constexpr (std::same_as<T, c10::IValue>) {
      const std::vector<char> bytes = torch::jit::pickle_save(value);
      return {bytes.begin(), bytes.end()};
    } else {
      std::ostringstream out;
      torch::save(value, out);
      return std::move(out).str();
    }
  } catch (const std::exception&) {
    refuse_to_write_object();
  }
}

// value: a tensor or IValue is replaced; a module or optimizer loads the saved state.
template <TorchObject T>
void from_bytes(const std::string& bytes, T& value) {
  try {
    if constexpr (std::same_as<T, c10::IValue>) {
      value = torch::jit::pickle_load(std::vector<char>(bytes.begin(), bytes.end()));
    } else {
      std::istringstream in(bytes);
      if constexpr (requires { value.clear(); }) value.clear();  // torch::load appends to a list
      torch::load(value, in);
    }
  } catch (const std::exception&) {
    refuse_to_read_object();
  }
}

template <TorchObject T>
std::vector<T> from_bytes(const std::vector<std::string>& list) {
  std::vector<T> values(list.size());
  for (std::size_t r = 0; r < list.size(); ++r) from_bytes(list[r], values[r]);
  return values;
}

}  // namespace detail

// Returns a list whose element r is rank r's value.
template <TorchObject T>
requires std::default_initializable<T> std::vector<T> all_gather_object(
    ProcessGroup& group, const T& value, std::optional<Timeout> timeout = {}) {
  return detail::from_bytes<T>(group.all_gather_bytes(detail::to_bytes(value), timeout));
}

// Returns the root's value on every rank. Modules and optimizers are handles: `value` itself is
// loaded into, and must be built like the root's.
template <TorchObject T>
T broadcast_object(ProcessGroup& group, T value, int root = 0,
                   std::optional<Timeout> timeout = {}) {
  const bool is_root = root == group.rank();
  const std::string bytes =
      group.broadcast_bytes(is_root ? detail::to_bytes(value) : std::string(), root, timeout);
  if (!is_root) detail::from_bytes(bytes, value);
  return value;
}

// Returns, on the root, a list whose element r is rank r's value; elsewhere an empty list.
template <TorchObject T>
requires std::default_initializable<T> std::vector<T> gather_object(
    ProcessGroup& group, const T& value, int root = 0, std::optional<Timeout> timeout = {}) {
  return detail::from_bytes<T>(group.gather_bytes(detail::to_bytes(value), root, timeout));
}

// Returns the root's values[rank()]. Elsewhere `values` must be empty.
template <TorchObject T>
requires std::default_initializable<T> T scatter_object(ProcessGroup& group,
                                                        const std::vector<T>& values, int root = 0,
                                                        std::optional<Timeout> timeout = {}) {
  std::vector<std::string> list;
  for (const T& value : values) list.push_back(detail::to_bytes(value));
  T own{};
  detail::from_bytes(group.scatter_bytes(list, root, timeout), own);
  return own;
}

}  // namespace ddprun
