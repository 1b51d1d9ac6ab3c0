// The header of a file of safetensors: 8 bytes with its length, then JSON with the name, dtype,
// shape and place of each tensor. The tensors follow. Free functions; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "worker_lib/serialization/core/pickle_value.h"

namespace ddprun {

struct SafetensorsEntry {
  std::string name;
  std::string_view dtype;  // PyTorch's name: "float32"
  std::vector<std::int64_t> sizes;
  std::uint64_t begin = 0, end = 0;  // bytes after the header
  bool operator==(const SafetensorsEntry&) const = default;
};

// Returns the name of a dtype of PyTorch: "F32". Empty: safetensors has none.
std::string_view safetensors_dtype(std::string_view dtype);
// Returns the dtype with this name in safetensors; nullopt: there is none.
std::optional<PickleDtype> torch_dtype(std::string_view name);

// Returns the bytes before the first tensor. step: for the header's own text entries.
std::string safetensors_header(const std::vector<SafetensorsEntry>& entries,
                               std::optional<std::int64_t> step);

}  // namespace ddprun
