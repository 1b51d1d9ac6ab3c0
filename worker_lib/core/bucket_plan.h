// How gradients are laid out in buckets, and when a bucket may be sent during a backward pass.
//
// A bucket is one flat block of memory that is reduced over all ranks with one call. plan_buckets()
// cuts a list of gradients into buckets; ReductionPass follows one backward pass and says which
// buckets are due. Both are functions of their arguments alone, so ranks that give the same
// arguments send the same buckets in the same order.
//
// Value types and pure functions; one owner thread.
#pragma once

#include <cstddef>
#include <cstdint>
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

// Where a gradient lies in its bucket.
struct BucketSlot {
  std::size_t gradient = 0;  // index into the gradients that were planned
  std::uint64_t offset_bytes = 0;
};

struct BucketLayout {
  int kind = 0;
  std::uint64_t bytes = 0;  // up to the end of the last slot
  std::vector<BucketSlot> slots;
};

// The next place where a slot, or what follows the last one, may begin: aligned, for kernels. What
// lies between slots stays zero.
constexpr std::uint64_t slot_aligned(std::uint64_t bytes) { return (bytes + 63) / 64 * 64; }

// Cuts `gradients`, taken in `order` (a permutation of their indices: the order in which they
// become ready), into buckets. PyTorch's rule: one open bucket for each kind; a gradient is added
// first, and then the bucket is closed if it has reached its cap, so buckets overshoot and one
// gradient is never split. The buckets come in the order in which they become full.
std::vector<BucketLayout> plan_buckets(std::span<const PlannedGradient> gradients,
                                       std::span<const std::size_t> order, BucketCaps caps);

// One backward pass. Buckets are due strictly in list order, because every rank must send them in
// the same order; the last one is held back until the pass ends, because it carries what this rank
// has to say about the whole pass.
//
//   per gradient:   mark_ready(g); while ((b = take_due()) >= 0) send(b);
//   at the end:     while ((b = take_remaining()) >= 0) send(b);
class ReductionPass {
 public:
  // buckets: as planned; kept by reference, must outlive this.
  ReductionPass(std::span<const BucketLayout> buckets, std::size_t gradient_count);

  // False, and nothing changes, when it was marked before: it grew after it was taken over.
  bool mark_ready(std::size_t gradient);

  // The next bucket that is due, or -1. Each is returned once.
  int take_due();

  // At the end of the pass: the buckets that are left, complete or not, the last one included; then
  // -1.
  int take_remaining();

  // Gradients that were never marked, in index order.
  std::vector<std::size_t> missing() const;
  // Gradients in the order in which they were first marked.
  const std::vector<std::size_t>& ready_order() const { return order_; }

 private:
  std::span<const BucketLayout> buckets_;
  std::vector<std::size_t> bucket_of_;
  std::vector<std::size_t> pending_;  // per bucket: gradients not yet marked
  std::vector<char> ready_;
  std::vector<std::size_t> order_;
  std::size_t next_ = 0;  // the first bucket that was not taken
};

}  // namespace ddprun
