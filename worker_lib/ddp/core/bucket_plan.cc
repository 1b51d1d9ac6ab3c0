#include "worker_lib/ddp/core/bucket_plan.h"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>

#include "base/assert.h"

namespace ddprun {
namespace {

struct OpenBucket {
  BucketLayout layout;
  std::uint64_t payload_bytes = 0;  // without padding: the caps count what the user sees
  bool is_first = true;
};

}  // namespace

std::vector<BucketLayout> plan_buckets(std::span<const PlannedGradient> gradients,
                                       std::span<const std::size_t> order, BucketCaps caps) {
  DDPRUN_ASSERT(order.size() <= gradients.size(), "the order has each gradient once at most");
  std::map<int, OpenBucket> open;
  std::vector<BucketLayout> closed;
  for (const std::size_t index : order) {
    const PlannedGradient& gradient = gradients[index];
    OpenBucket& bucket = open[gradient.kind];
    const std::uint64_t offset = slot_aligned(bucket.layout.bytes);
    bucket.layout.kind = gradient.kind;
    bucket.layout.slots.push_back({index, offset});
    bucket.layout.bytes = offset + gradient.bytes;
    bucket.payload_bytes += gradient.bytes;
    if (bucket.payload_bytes >= (bucket.is_first ? caps.first_bytes : caps.bytes)) {
      closed.push_back(std::move(bucket.layout));
      bucket = OpenBucket{.is_first = false};
    }
  }
  // Buckets that never reached their cap become full with their last gradient.
  for (auto& [kind, bucket] : open)
    if (!bucket.layout.slots.empty()) closed.push_back(std::move(bucket.layout));
  std::vector<std::size_t> place(gradients.size());
  for (std::size_t i = 0; i < order.size(); ++i) place[order[i]] = i;
  std::ranges::sort(
      closed, {}, [&](const BucketLayout& layout) { return place[layout.slots.back().gradient]; });
  return closed;
}

ReductionPass::ReductionPass(std::span<const BucketLayout> buckets, std::size_t gradient_count,
                             std::span<const int> expected)
    : buckets_(buckets),
      bucket_of_(gradient_count, kNoBucket),
      expected_(gradient_count, 1),
      arrivals_(gradient_count),
      marked_unused_(gradient_count),
      last_arrival_(gradient_count) {
  if (!expected.empty()) expected_.assign(expected.begin(), expected.end());
  for (std::size_t b = 0; b < buckets.size(); ++b) {
    pending_.push_back(0);
    for (const BucketSlot& slot : buckets[b].slots) {
      bucket_of_[slot.gradient] = b;
      if (is_awaited(slot.gradient)) ++pending_[b];
    }
  }
}

bool ReductionPass::is_awaited(std::size_t gradient) const {
  return arrivals_[gradient] < expected_[gradient] && !marked_unused_[gradient];
}

// Counts a gradient that is no longer awaited.
void ReductionPass::settle(std::size_t gradient) {
  if (bucket_of_[gradient] != kNoBucket) --pending_[bucket_of_[gradient]];
}

void ReductionPass::mark_unused(std::size_t gradient) {
  if (is_awaited(gradient)) settle(gradient);
  marked_unused_[gradient] = 1;
}

bool ReductionPass::arrive(std::size_t gradient) {
  const bool has_gone = bucket_of_[gradient] != kNoBucket && bucket_of_[gradient] < next_;
  const bool is_too_often = arrivals_[gradient] >= expected_[gradient];
  if (!only_counts_ && (is_too_often || has_gone)) return false;
  const bool was_awaited = is_awaited(gradient);
  ++arrivals_[gradient];
  last_arrival_[gradient] = ++sequence_;
  if (was_awaited && !is_awaited(gradient)) settle(gradient);
  return true;
}

std::optional<std::size_t> ReductionPass::take_due() {
  if (only_counts_ || next_ + 1 >= buckets_.size() || pending_[next_] > 0) return std::nullopt;
  return next_++;
}

std::optional<std::size_t> ReductionPass::take_remaining() {
  if (next_ >= buckets_.size()) return std::nullopt;
  return next_++;
}

std::vector<std::size_t> ReductionPass::missing() const {
  std::vector<std::size_t> result;
  for (std::size_t g = 0; g < arrivals_.size(); ++g)
    if (is_awaited(g)) result.push_back(g);
  return result;
}

std::vector<std::size_t> ReductionPass::ready_order() const {
  std::vector<std::size_t> order(arrivals_.size());
  std::iota(order.begin(), order.end(), 0);
  constexpr auto kNever = std::numeric_limits<std::uint64_t>::max();
  std::ranges::stable_sort(order, {},
                           [&](std::size_t g) { return arrivals_[g] ? last_arrival_[g] : kNever; });
  return order;
}

}  // namespace ddprun
