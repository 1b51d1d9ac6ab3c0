#include "worker_lib/verification.h"

#include <torch/torch.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "worker_lib/cpu/rank_names.h"

namespace ddprun {
namespace {

bool can_hold_nan(const torch::Tensor& tensor) {
  return torch::isFloatingType(tensor.scalar_type()) || torch::isComplexType(tensor.scalar_type());
}

void mix(std::uint64_t& digest, std::uint64_t word) {
  digest = (digest ^ word) * 0x9e3779b97f4a7c15;
  digest ^= digest >> 29;
}

}  // namespace

Result<Verify> parse_verify(const std::optional<std::string>& text) {
  if (!text || text->empty() || *text == "0") return Verify();
  if (*text == "1") return Verify{.nan = true, .results = true};
  if (*text == "nan") return Verify{.nan = true, .results = false};
  if (*text == "results") return Verify{.nan = false, .results = true};
  return invalid_argument("'" + *text + "' is none of 1, nan, results and 0");
}

NanFound find_nan(TensorList tensors) {
  const torch::NoGradGuard no_grad;
  NanFound found;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (!can_hold_nan(tensors[i])) continue;
    const torch::Tensor where = torch::isnan(tensors[i].cpu()).view({-1}).nonzero();
    if (found.count == 0 && where.numel() > 0) {
      found.tensor = static_cast<std::int64_t>(i);
      found.element = where[0].item<std::int64_t>();
    }
    found.count += where.size(0);
  }
  return found;
}

std::uint64_t digest_of(TensorList tensors) {
  std::uint64_t digest = 0;
  for (const torch::Tensor& one : tensors) {
    const torch::Tensor host = one.cpu();
    const auto* bytes = static_cast<const char*>(host.const_data_ptr());
    std::size_t left = host.nbytes();
    mix(digest, left);
    while (left > 0) {
      std::uint64_t word = 0;
      const std::size_t length = std::min(left, sizeof(word));
      std::memcpy(&word, bytes, length);
      mix(digest, word);
      bytes += length;
      left -= length;
    }
  }
  return digest;
}

std::string describe_divergence(std::span<const std::uint64_t> digests) {
  const auto count_of = [&](std::uint64_t digest) { return std::ranges::count(digests, digest); };
  // Of equally many the one that comes first, so that every rank says the same.
  const std::uint64_t usual = *std::ranges::max_element(digests, {}, count_of);
  std::vector<int> same;
  std::vector<int> others;
  for (std::size_t rank = 0; rank < digests.size(); ++rank) {
    (digests[rank] == usual ? same : others).push_back(static_cast<int>(rank));
  }
  if (others.empty()) return "";
  return name_ranks(others) + (others.size() == 1 ? " has" : " have") + " another result than " +
         name_ranks(same);
}

}  // namespace ddprun
