// What DDPRUN_VERIFY looks for in tensors, and hashes of them. Made for finding faults: tensors of other
// devices are copied to the host. Any thread; throws what LibTorch throws.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "base/result.h"
#include "ddprun/backend.h"
#include "ddprun/process_group.h"

namespace ddprun {

// "1" (all), "nan", "results", "0" or nothing (neither). kInvalidArgument: anything else.
Result<Verify> parse_verify(const std::optional<std::string>& text);

// "NaN and results", "NaN", "results" or nothing.
std::string words_of(const Verify& verify);

// A NaN among the elements of a list.
struct NanFound {
  std::int64_t count = 0;
  std::int64_t tensor = 0;   // of the first
  std::int64_t element = 0;  // of the first
};
NanFound find_nan(TensorList tensors);

// Of all bits of a tensor.
std::uint64_t hash_of(const torch::Tensor& tensor);
// Of all bits of all tensors, in order.
std::uint64_t digest_of(TensorList tensors);

// Whose digest is not that of most others: "rank 2 has another result than ranks 0, 1 and 3"; empty if
// all are the same.
std::string describe_divergence(std::span<const std::uint64_t> digests);

}  // namespace ddprun
