// GradientPlacement: has gradients computed where they are to lie in their buckets, so that nothing
// is copied there.
//
// A gradient is a tensor that some function of autograd allocates. In the first pass the placement
// finds out which: the k-th allocation of so many bytes since the pass began. In later passes that
// allocation gets the gradient's place in its bucket. Where the guess is wrong, the place has been
// lent to a tensor that is something else; is_lent() says so until that one is gone, and then the
// place must not be written to: the owner moves the bucket instead, and the guess is not repeated.
//
// LibTorch's allocator of host memory is replaced by one that passes everything on but these
// allocations, of the thread of a pass that has begun. Only tensors on the host.
//
//   new_pass()
//   begin()                 nothing is lent before, and nothing after end()
//     note_gradient(i, ...) gradient i has come
//   end()
//
// One thread at a time; begin() to end() on the thread of the backward pass. Lent memory may be given
// back by any thread.
#pragma once

#include <torch/types.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

namespace ddprun {

class GradientPlacement : public std::enable_shared_from_this<GradientPlacement> {
 public:
  // parameters: dense, on the host. Replaces LibTorch's allocator, once in a process.
  static std::shared_ptr<GradientPlacement> make(std::vector<torch::Tensor> parameters);

  // Where the gradient belongs. It keeps the memory alive as long as it is lent.
  void set_place(std::size_t gradient, const torch::Tensor& place);

  void begin();
  void end();
  bool is_active() const;

  // No gradient has come yet.
  void new_pass();
  // value: what .grad is now. computed: what autograd had computed, which still lives, and often is
  // the same.
  void note_gradient(std::size_t gradient, const torch::Tensor& value,
                     const torch::Tensor& computed);
  // A tensor that is not the gradient lies in its place, or one that is more than the gradient.
  bool is_lent(std::size_t gradient) const {
    return slots_[gradient].lease->is_lent && !slots_[gradient].is_in_place;
  }
  // It was wrong.
  void do_not_guess(std::size_t gradient) { slots_[gradient].may_guess = false; }

 private:
  class Allocator;
  struct Lease {
    std::atomic<bool> is_lent = false;
    torch::Tensor place;
  };
  struct Slot {
    torch::Tensor parameter;
    std::shared_ptr<Lease> lease;
    bool may_guess = true;
    // In this pass.
    bool has_come = false;
    bool is_in_place = false;
    std::optional<std::uint64_t> ordinal = {};  // of the allocation among those of its size
  };
  struct OfSize {
    std::vector<const void*> seen;                      // in this pass
    std::unordered_map<std::uint64_t, std::size_t> of;  // gradients by ordinal
  };

  explicit GradientPlacement(std::vector<torch::Tensor> parameters);
  // Null: this allocation is an ordinary one.
  c10::DataPtr lend(std::size_t bytes);
  void saw(std::size_t bytes, const void* memory);

  std::vector<Slot> slots_;
  std::unordered_map<std::size_t, OfSize> sizes_;
};

}  // namespace ddprun
