#include "worker_lib/core/bucket_plan.h"

#include <algorithm>
#include <map>

#include "base/assert.h"

namespace ddprun {
namespace {

struct OpenBucket {
  BucketLayout layout;
  std::uint64_t payload_bytes = 0;  // without padding: the caps are about what the user sees
  bool is_first = true;
};

}  // namespace

std::vector<BucketLayout> plan_buckets(std::span<const PlannedGradient> gradients,
                                       std::span<const std::size_t> order, BucketCaps caps) {
  DDPRUN_ASSERT(order.size() == gradients.size(), "the order is a permutation of the gradients");
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
  std::vector<BucketLayout> rest;
  for (auto& [kind, bucket] : open)
    if (!bucket.layout.slots.empty()) rest.push_back(std::move(bucket.layout));

  // Those that never reached their cap become full with their last gradient.
  std::vector<std::size_t> place(gradients.size());
  for (std::size_t i = 0; i < order.size(); ++i) place[order[i]] = i;
  for (BucketLayout& layout : rest) closed.push_back(std::move(layout));
  std::ranges::sort(
      closed, {}, [&](const BucketLayout& layout) { return place[layout.slots.back().gradient]; });
  return closed;
}

ReductionPass::ReductionPass(std::span<const BucketLayout> buckets, std::size_t gradient_count)
    : buckets_(buckets), bucket_of_(gradient_count), ready_(gradient_count) {
  for (std::size_t b = 0; b < buckets.size(); ++b) {
    pending_.push_back(buckets[b].slots.size());
    for (const BucketSlot& slot : buckets[b].slots) bucket_of_[slot.gradient] = b;
  }
  order_.reserve(gradient_count);
}

bool ReductionPass::mark_ready(std::size_t gradient) {
  if (ready_[gradient]) return false;
  ready_[gradient] = 1;
  order_.push_back(gradient);
  --pending_[bucket_of_[gradient]];
  return true;
}

int ReductionPass::take_due() {
  if (next_ + 1 >= buckets_.size() || pending_[next_] > 0) return -1;
  return static_cast<int>(next_++);
}

int ReductionPass::take_remaining() {
  if (next_ >= buckets_.size()) return -1;
  return static_cast<int>(next_++);
}

std::vector<std::size_t> ReductionPass::missing() const {
  std::vector<std::size_t> result;
  for (std::size_t g = 0; g < ready_.size(); ++g)
    if (!ready_[g]) result.push_back(g);
  return result;
}

}  // namespace ddprun
