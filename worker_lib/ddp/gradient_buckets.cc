#include "worker_lib/ddp/gradient_buckets.h"

#include <ATen/Dispatch.h>

#include <algorithm>

#include "worker_lib/group/late_checks.h"

namespace ddprun {
namespace {

// Complex gradients are reduced as pairs of reals.
torch::ScalarType reduced_type(const torch::Tensor& tensor) {
  return c10::toRealValueType(tensor.scalar_type());
}

}  // namespace

GradientBuckets::GradientBuckets(std::vector<torch::Tensor> parameters, std::size_t words,
                                 ProcessGroup& group, BucketCaps caps)
    : group_(group),
      caps_(caps),
      parameters_(std::move(parameters)),
      word_count_(words),
      places_(parameters_.size()),
      bucket_of_(parameters_.size()) {}

void GradientBuckets::lay_out(std::span<const std::size_t> order) {
  std::vector<PlannedGradient> gradients;
  for (const torch::Tensor& parameter : parameters_)
    gradients.push_back(
        {.bytes = parameter.nbytes(), .kind = static_cast<int>(reduced_type(parameter))});
  layout_ = plan_buckets(gradients, order, caps_);
  if (layout_.empty()) layout_.push_back({.kind = static_cast<int>(torch::kFloat32)});
  flats_.resize(layout_.size());
  firsts_.clear();
  for (std::size_t bucket = 0; bucket < count(); ++bucket) {
    const BucketLayout& layout = layout_[bucket];
    const auto type = static_cast<torch::ScalarType>(layout.kind);
    const bool is_last = bucket + 1 == count();
    const std::int64_t elements =
        slot_aligned(layout.bytes) / c10::elementSize(type) + (is_last ? word_count_ : 0);
    const torch::Tensor flat = group_.shared_empty({elements}, type).zero_();
    flats_[bucket] = flat;
    for (const BucketSlot& slot : layout.slots) {
      places_[slot.gradient] = make_place(slot.gradient, flat, slot.offset_bytes);
      bucket_of_[slot.gradient] = bucket;
    }
    if (is_last) words_ = flat.narrow(0, flat.size(0) - word_count_, word_count_);
  }
}

// Makes a place with the strides that AccumulateGrad would choose.
torch::Tensor GradientBuckets::make_place(std::size_t gradient, const torch::Tensor& flat,
                                          std::uint64_t offset_bytes) const {
  const torch::Tensor& parameter = parameters_[gradient];
  const auto strides = parameter.is_non_overlapping_and_dense()
                           ? parameter.strides().vec()
                           : torch::empty(parameter.sizes(), torch::kMeta).strides().vec();
  return torch::from_blob(
      static_cast<char*>(flat.data_ptr()) + offset_bytes, parameter.sizes(), strides,
      [flat](void*) {}, parameter.options().requires_grad(false));
}

bool GradientBuckets::is_in_place(std::size_t gradient, const torch::Tensor& tensor) const {
  const torch::Tensor& place = places_[gradient];
  if (tensor.is_same(place)) return true;
  return tensor.layout() == torch::kStrided && tensor.const_data_ptr() == place.const_data_ptr() &&
         tensor.strides() == place.strides();
}

torch::Tensor GradientBuckets::payload(std::size_t bucket) const {
  const torch::Tensor& whole = flat(bucket);
  return bucket + 1 < count() ? whole : whole.narrow(0, 0, whole.size(0) - word_count_);
}

void GradientBuckets::write_words(std::span<const double> words) {
  const torch::Tensor host = words_.is_cpu() ? words_ : detail::host_tensor_for(words_);
  AT_DISPATCH_FLOATING_TYPES_AND2(
      torch::kFloat16, torch::kBFloat16, host.scalar_type(), "words", [&] {
        std::ranges::transform(words, host.mutable_data_ptr<scalar_t>(),
                               [](double word) { return static_cast<scalar_t>(word); });
      });
  if (!words_.is_cpu()) words_.copy_(host, /*non_blocking=*/true);
}

std::vector<double> GradientBuckets::numbers_in(const torch::Tensor& words) {
  std::vector<double> numbers;
  AT_DISPATCH_FLOATING_TYPES_AND2(torch::kFloat16, torch::kBFloat16, words.scalar_type(), "words",
                                  [&] {
                                    const auto* first = words.const_data_ptr<scalar_t>();
                                    numbers.assign(first, first + words.numel());
                                  });
  return numbers;
}

// Makes one call for each bucket, whose gradients have one dtype.
void GradientBuckets::multiply_first_elements(const torch::Tensor& factor) {
  firsts_.resize(layout_.size());
  for (std::size_t bucket = 0; bucket < count(); ++bucket) {
    std::vector<torch::Tensor>& firsts = firsts_[bucket];
    if (firsts.empty()) firsts = first_elements(bucket);
    if (!firsts.empty()) at::_foreach_mul_(firsts, factor.to(flat(bucket).scalar_type()));
  }
}

std::vector<torch::Tensor> GradientBuckets::first_elements(std::size_t bucket) const {
  const torch::Tensor& all = flat(bucket);
  std::vector<torch::Tensor> result;
  for (const BucketSlot& slot : layout_[bucket].slots) {
    if (parameters_[slot.gradient].numel() == 0) continue;
    const std::uint64_t at = slot.offset_bytes / c10::elementSize(all.scalar_type());
    result.push_back(all.narrow(0, at, 1));
  }
  return result;
}

}  // namespace ddprun
