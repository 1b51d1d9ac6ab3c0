#include "ddprun/clip_grad_norm.h"

#include <torch/types.h>

#include <algorithm>
#include <cmath>

#include "base/concat.h"
#include "worker_lib/util/error_bridge.h"

namespace ddprun {
namespace {

constexpr const char* kClipping = "clip_grad_norm_";

torch::Tensor norm_of(const torch::Tensor& gradient, double norm_type) {
  const torch::Tensor values = gradient.is_sparse() ? gradient.coalesce().values() : gradient;
  const bool is_short =
      values.scalar_type() == torch::kHalf || values.scalar_type() == torch::kBFloat16;
  return torch::linalg_vector_norm(
      values, norm_type, c10::nullopt, /*keepdim=*/false,
      is_short ? std::optional<torch::ScalarType>(torch::kFloat32) : std::nullopt);
}

}  // namespace

torch::Tensor clip_grad_norm_(const std::vector<torch::Tensor>& parameters, double max_norm,
                              double norm_type, bool error_if_nonfinite) {
  return with_dist_errors(kClipping, [&] {
    if (!(max_norm >= 0))
      refuse(
          concat(kClipping, ": max_norm is ", std::to_string(max_norm), ", at least 0 is needed"));
    if (!(norm_type > 0))
      refuse(concat(kClipping, ": norm_type is ", std::to_string(norm_type),
                    ", a number above 0 or infinity is needed"));
    const torch::NoGradGuard no_grad;
    std::vector<torch::Tensor> gradients, norms;
    for (const torch::Tensor& parameter : parameters)
      if (parameter.grad().defined()) gradients.push_back(parameter.grad());
    if (gradients.empty()) return torch::zeros({});
    for (const torch::Tensor& gradient : gradients) norms.push_back(norm_of(gradient, norm_type));
    const bool has_double = std::ranges::any_of(
        norms, [](const torch::Tensor& norm) { return norm.scalar_type() == torch::kFloat64; });
    const auto options = gradients.front()
                             .options()
                             .layout(torch::kStrided)
                             .dtype(has_double ? torch::kFloat64 : torch::kFloat32);
    for (torch::Tensor& norm : norms) norm = norm.to(options);
    const torch::Tensor total = torch::linalg_vector_norm(torch::stack(norms), norm_type);
    if (error_if_nonfinite && !std::isfinite(total.item<double>()))
      refuse(concat(kClipping, ": the norm of the gradients is ",
                    std::to_string(total.item<double>())),
             DistError::Kind::kCorrupt);
    const torch::Tensor factor = (max_norm / (total + 1e-6)).clamp_max(1.0);
    for (torch::Tensor& gradient : gradients) {
      torch::Tensor values = gradient.is_sparse() ? gradient._values() : gradient;
      values.mul_(factor.to(values.device()));
    }
    return total;
  });
}

}  // namespace ddprun
