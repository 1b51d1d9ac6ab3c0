// GradientPlacement: makes autograd compute gradients directly in their places in buckets, so
// that nothing is copied.
//
// A gradient is a tensor that some function of autograd allocates. In the first pass the
// placement finds out which allocation this is: the k-th one of its size since the pass began.
// In later passes that allocation gets the gradient's place in its bucket. If the guess is
// wrong, the place is lent to another tensor. is_lent() then returns true until that tensor is
// gone, and the place must not be written to meanwhile. The owner moves the bucket instead, and
// the guess is not repeated.
//
// LibTorch's allocator of host memory is replaced by one that forwards all allocations except
// these, which come from the thread of a pass that has begun. Only tensors on the host.
//
//   new_pass()
//   begin()                 nothing is lent before, and nothing after end()
//     note_gradient(i, ...) gradient i has come
//   end()
//
// One thread at a time; begin() to end() on the thread of the backward pass. Any thread may give
// lent memory back.
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
  // Makes a placement. parameters: dense, on the host. The first call in a process replaces
  // LibTorch's allocator.
  static std::shared_ptr<GradientPlacement> make(std::vector<torch::Tensor> parameters);

  // Sets where the gradient belongs. The placement keeps that memory alive as long as it is
  // lent.
  void set_place(std::size_t gradient, const torch::Tensor& place);

  void begin();
  void end();
  bool is_active() const;

  // Starts a pass in which no gradient has come yet.
  void new_pass();
  // Records that a gradient has come. value: the present .grad. computed: the tensor that
  // autograd computed; it still lives, and often is the same one.
  void note_gradient(std::size_t gradient, const torch::Tensor& value,
                     const torch::Tensor& computed);
  // Returns whether the place holds a tensor that is not the gradient, or that is more than the
  // gradient.
  bool is_lent(std::size_t gradient) const {
    return slots_[gradient].lease->is_lent && !slots_[gradient].is_in_place;
  }
  // Stops guessing for this gradient, after a wrong guess.
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
  // Returns the place for an allocation; null if it is an ordinary one.
  c10::DataPtr lend(std::size_t bytes);
  void saw(std::size_t bytes, const void* memory);

  std::vector<Slot> slots_;
  std::unordered_map<std::size_t, OfSize> sizes_;
};

}  // namespace ddprun
