#include "worker_lib/group/verification.h"

#include <torch/types.h>

#include <vector>

#include "worker_lib/collective/core/divergence.h"
#include "worker_lib/collective/core/tensor_hash.h"
#include "worker_lib/collective/rank_names.h"

namespace ddprun {
namespace {

bool can_hold_nan(const torch::Tensor& tensor) {
  return torch::isFloatingType(tensor.scalar_type()) || torch::isComplexType(tensor.scalar_type());
}

}  // namespace

Result<Verify> parse_verify(const std::optional<std::string>& text) {
  if (!text || text->empty() || *text == "0") return Verify();
  if (*text == "1") return Verify{.nan = true, .results = true};
  if (*text == "nan") return Verify{.nan = true, .results = false};
  if (*text == "results") return Verify{.nan = false, .results = true};
  return invalid_value(*text, "expected 1, nan, results or 0");
}

std::string words_of(const Verify& verify) {
  const std::string nan = verify.nan ? "NaN" : "";
  if (!verify.results) return nan;
  return nan.empty() ? "results" : nan + " and results";
}

NanFound find_nan(TensorList tensors) {
  const torch::NoGradGuard no_grad;
  NanFound found;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (!can_hold_nan(tensors[i])) continue;
    torch::Tensor host = tensors[i].cpu();
    if (c10::isFloat8Type(host.scalar_type())) host = host.to(torch::kFloat32);
    const torch::Tensor where = torch::isnan(host).view({-1}).nonzero();
    if (found.count == 0 && where.numel() > 0) {
      found.tensor = static_cast<std::int64_t>(i);
      found.element = where[0].item<std::int64_t>();
    }
    found.count += where.size(0);
  }
  return found;
}

std::uint64_t hash_of(const torch::Tensor& tensor) {
  const torch::Tensor plain = tensor.detach().cpu().contiguous();
  return tensor_hash({static_cast<const std::byte*>(plain.const_data_ptr()), plain.nbytes()});
}

std::uint64_t digest_of(TensorList tensors) {
  std::vector<std::uint64_t> hashes;
  for (const torch::Tensor& one : tensors) hashes.push_back(hash_of(one));
  return tensor_hash(hashes);
}

std::string describe_divergence(std::span<const std::uint64_t> digests) {
  const Vote ranks = vote(digests);
  if (ranks.others.empty()) return "";
  return name_ranks(ranks.others) + (ranks.others.size() == 1 ? " has" : " have") +
         " another result than " + name_ranks(ranks.usual);
}

}  // namespace ddprun
