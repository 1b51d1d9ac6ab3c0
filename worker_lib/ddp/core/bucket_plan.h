// Lays out gradients in buckets, and decides when a bucket may be sent during a backward pass.
//
// A bucket is one flat block of memory that is reduced over all ranks with one call.
// plan_buckets() divides a list of gradients into buckets. ReductionPass follows one backward
// pass and says which buckets are due. Both depend on their arguments only, so ranks that give
// the same arguments send the same buckets in the same order.
//
// Value types and pure functions; one owner thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace ddprun {

// One gradient. Gradients of different `kind` (dtype and device) never share a bucket.
struct PlannedGradient {
  std::uint64_t bytes = 0;
  int kind = 0;
};

struct BucketCaps {
  std::uint64_t first_bytes = 0;  // of the first bucket of each kind
  std::uint64_t bytes = 0;        // of all others
};

// The place of a gradient in its bucket.
struct BucketSlot {
  std::size_t gradient = 0;  // index into the gradients that were planned
  std::uint64_t offset_bytes = 0;
};

struct BucketLayout {
  int kind = 0;
  std::uint64_t bytes = 0;  // up to the end of the last slot
  std::vector<BucketSlot> slots;
};

// Returns the next aligned offset (for kernels) at which a slot, or the data after the last one,
// may begin. Gaps between slots stay zero.
constexpr std::uint64_t slot_aligned(std::uint64_t bytes) { return (bytes + 63) / 64 * 64; }

// Divides `gradients`, taken in `order`, into buckets. order: the indices in the order in which
// they become ready, each at most once. Gradients that `order` leaves out are in no bucket.
// PyTorch's rule: there is one open bucket for each kind. A gradient is added first, and then
// the bucket is closed if it has reached its cap. So buckets overshoot, and a gradient is never
// split. The buckets are in the order in which they become full.
std::vector<BucketLayout> plan_buckets(std::span<const PlannedGradient> gradients,
                                       std::span<const std::size_t> order, BucketCaps caps);

// ReductionPass: one backward pass. Buckets are due strictly in list order, because every rank
// must send them in the same order. The last one is held back until the pass ends, because it
// carries this rank's report on the whole pass.
//
//   per gradient:   arrive(g); while (b = take_due()) send(*b);
//   at the end:     while (b = take_remaining()) send(*b);
//
// Gradients without a bucket are counted like the others.
class ReductionPass {
 public:
  // buckets: as planned; kept by reference, must outlive this.
  // expected: how often each gradient comes in the pass; empty: once.
  ReductionPass(std::span<const BucketLayout> buckets, std::size_t gradient_count,
                std::span<const int> expected = {});

  // Lets the pass only count how often gradients come: any number is accepted, and no bucket is due
  // before the end.
  void only_count() { only_counts_ = true; }

  // Stops waiting for the gradient in this pass. Its bucket may be sent without it.
  void mark_unused(std::size_t gradient);

  // Records that the gradient has come. Returns false and changes nothing if it has already come
  // as often as expected, or if it was marked unused and its bucket was sent.
  bool arrive(std::size_t gradient);

  // Returns the next bucket that is due; nullopt: none. Returns each bucket once.
  std::optional<std::size_t> take_due();

  // Returns the remaining buckets one by one at the end of the pass, complete or not, the last one
  // included; then nullopt.
  std::optional<std::size_t> take_remaining();

  // Returns how often each gradient has come.
  const std::vector<int>& arrivals() const { return arrivals_; }
  // Returns the gradients that came less often than expected and were not marked unused, in
  // index order.
  std::vector<std::size_t> missing() const;
  // Returns the gradients in the order in which they came (the last time), then those that never
  // came.
  std::vector<std::size_t> ready_order() const;

 private:
  bool is_awaited(std::size_t gradient) const;
  void settle(std::size_t gradient);

  static constexpr std::size_t kNoBucket = static_cast<std::size_t>(-1);

  std::span<const BucketLayout> buckets_;
  std::vector<std::size_t> bucket_of_;
  std::vector<std::size_t> pending_;  // per bucket: gradients that are awaited
  std::vector<int> expected_;
  std::vector<int> arrivals_;
  std::vector<char> marked_unused_;
  std::vector<std::uint64_t> last_arrival_;  // in the sequence of all arrivals, from 1 on
  std::uint64_t sequence_ = 0;
  bool only_counts_ = false;
  std::size_t next_ = 0;  // the first bucket that was not taken
};

}  // namespace ddprun
