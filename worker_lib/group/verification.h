// Checks of DDPRUN_VERIFY on tensors, and hashes of tensors. They are for finding faults:
// tensors of other devices are copied to the host. Any thread; throws what LibTorch throws.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "base/result.h"
#include "ddprun/backend.h"
#include "ddprun/process_group.h"

namespace ddprun {

// Parses "1" (all), "nan", "results", and "0" or an empty text (neither). Otherwise
// kInvalidArgument.
Result<Verify> parse_verify(const std::optional<std::string>& text);

// Returns "NaN and results", "NaN", "results" or an empty text.
std::string words_of(const Verify& verify);

// The NaNs among the elements of a list.
struct NanFound {
  std::int64_t count = 0;
  std::int64_t tensor = 0;   // index of the tensor with the first NaN
  std::int64_t element = 0;  // index of the first NaN in it
};
NanFound find_nan(TensorList tensors);

// Returns a hash of all bits of a tensor.
std::uint64_t hash_of(const torch::Tensor& tensor);
// Returns a hash of all bits of all tensors, in order.
std::uint64_t digest_of(TensorList tensors);

// Describes the ranks whose digest differs from that of most others: "rank 2 has another result
// than ranks 0, 1 and 3". Empty if all are the same.
std::string describe_divergence(std::span<const std::uint64_t> digests);

}  // namespace ddprun
