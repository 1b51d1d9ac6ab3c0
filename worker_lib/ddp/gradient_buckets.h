// GradientBuckets: the memory of a reducer's buckets. It has a place for each gradient. The
// words of a pass lie after the gradients of the last bucket.
//
//   bucket 0   | g5 | g4 | g3 ........ |      reduced as one block each
//   bucket 1   | g2 | g1 | g0 | words  |
//
// Words are numbers of every rank that travel with the gradients: one block of the last bucket's
// dtype, which is averaged with it. There is always a last bucket, even if it holds only the
// words.
//
// The running pass owns it (see reducer.h).
#pragma once

#include <torch/types.h>

#include <span>
#include <vector>

#include "ddprun/process_group.h"
#include "worker_lib/ddp/core/bucket_plan.h"

namespace ddprun {

class GradientBuckets {
 public:
  // parameters: on the group's device. The group must outlive this.
  GradientBuckets(std::vector<torch::Tensor> parameters, std::size_t words, ProcessGroup& group,
                  BucketCaps caps);

  // Allocates new, zeroed memory for this order of gradients. Gradients in the old memory stay
  // there and keep it alive. order: indices of parameters with dense gradients; all others have
  // no place.
  void lay_out(std::span<const std::size_t> order);

  std::span<const BucketLayout> layout() const { return layout_; }
  // Returns the gradient's place, with the parameter's shape and strides. It is not a view to
  // autograd, so detach_() works on it. It keeps the bucket alive, because .grad may outlive the
  // reducer.
  const torch::Tensor& place(std::size_t gradient) const { return places_[gradient]; }
  // Returns whether the tensor is the memory of the gradient's place.
  bool is_in_place(std::size_t gradient, const torch::Tensor& tensor) const;

  // REQUIRES: the gradient has a place.
  std::size_t bucket_of(std::size_t gradient) const { return bucket_of_[gradient]; }

  std::size_t count() const { return flats_.size(); }
  // Returns a whole bucket, of one dimension; the last one includes the words.
  const torch::Tensor& flat(std::size_t bucket) const { return flats_[bucket]; }
  // Returns a bucket without the words.
  torch::Tensor payload(std::size_t bucket) const;
  const torch::Tensor& words() const { return words_; }
  // Writes all words. Each step does this, so it uses no LibTorch operator if they are on the
  // host. Does not wait for a stream of a GPU.
  void write_words(std::span<const double> words);
  // Returns the numbers of such a block. words: on the host.
  static std::vector<double> numbers_in(const torch::Tensor& words);
  // Multiplies the first element of each gradient by `factor`: one float32 element on the
  // group's device.
  void multiply_first_elements(const torch::Tensor& factor);

 private:
  std::vector<torch::Tensor> first_elements(std::size_t bucket) const;
  torch::Tensor make_place(std::size_t gradient, const torch::Tensor& flat,
                           std::uint64_t offset_bytes) const;

  ProcessGroup& group_;
  const BucketCaps caps_;
  const std::vector<torch::Tensor> parameters_;
  const std::int64_t word_count_;
  std::vector<BucketLayout> layout_;
  std::vector<torch::Tensor> flats_;
  std::vector<torch::Tensor> places_;  // by gradient
  std::vector<std::size_t> bucket_of_;
  torch::Tensor words_;
  std::vector<std::vector<torch::Tensor>> firsts_;  // by bucket; empty until first used
};

}  // namespace ddprun
