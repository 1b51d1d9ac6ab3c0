// The memory of a reducer's buckets: where each gradient lies, and where a pass's words lie behind
// the gradients of the last bucket.
//
//   bucket 0   | g5 | g4 | g3 ........ |      reduced as one block each
//   bucket 1   | g2 | g1 | g0 | words  |
//
// Words are numbers of every rank that travel with the gradients: one block of the last bucket's
// dtype, which is averaged with it. There is always a last bucket, if only for the words.
//
// The pass that is running owns it (see reducer.h).
#pragma once

#include <torch/types.h>

#include <span>
#include <string>
#include <vector>

#include "ddprun/process_group.h"
#include "worker_lib/ddp/core/bucket_plan.h"

namespace ddprun {

class GradientBuckets {
 public:
  // parameters: dense, on the group's device; those that are not `in_a_bucket` get no place. The
  // group must outlive this.
  GradientBuckets(std::vector<torch::Tensor> parameters, const std::vector<char>& in_a_bucket,
                  std::size_t words, ProcessGroup& group, BucketCaps caps);

  // New memory for this order of gradients, zeros everywhere; gradients that live in the old memory
  // stay there, and keep it. order: indices of parameters; those without a place are left out.
  void lay_out(std::span<const std::size_t> order);

  // New memory for one bucket, with what is in it.
  void move(int bucket);

  std::span<const BucketLayout> layout() const { return layout_; }
  bool has_place(std::size_t gradient) const { return in_a_bucket_[gradient] != 0; }
  // With the parameter's shape and strides; no view to autograd, so that detach_() works on it. It
  // keeps the bucket alive, because .grad may outlive the reducer.
  const torch::Tensor& place(std::size_t gradient) const { return places_[gradient]; }
  // Whether the tensor is the memory of the gradient's place.
  bool is_in_place(std::size_t gradient, const torch::Tensor& tensor) const;

  // REQUIRES: it has a place.
  int bucket_of(std::size_t gradient) const { return bucket_of_[gradient]; }

  int count() const { return static_cast<int>(flats_.size()); }
  // A whole bucket, one dimension; the last one with the words.
  const torch::Tensor& flat(int bucket) const { return flats_[static_cast<std::size_t>(bucket)]; }
  // Without them.
  torch::Tensor payload(int bucket) const;
  const torch::Tensor& words() const { return words_; }
  // All of them; each step does this, so without an operator of LibTorch's where they are on the
  // host. Waits for no stream of a GPU.
  void write_words(std::span<const double> words);
  // words: such a block, on the host.
  static std::vector<double> numbers_in(const torch::Tensor& words);
  // Multiplies the first element of each gradient by the factor, one element of the dtype float on
  // the group's device.
  void multiply_first_elements(const torch::Tensor& factor);

 private:
  void set_flat(int bucket, const torch::Tensor& flat);
  std::vector<torch::Tensor> first_elements(int bucket) const;
  torch::Tensor make_place(std::size_t gradient, const torch::Tensor& flat,
                           std::uint64_t offset_bytes) const;

  ProcessGroup& group_;
  const BucketCaps caps_;
  const std::vector<torch::Tensor> parameters_;
  const std::vector<char> in_a_bucket_;
  const std::int64_t word_count_;
  std::vector<BucketLayout> layout_;
  std::vector<torch::Tensor> flats_;
  std::vector<torch::Tensor> places_;  // by gradient
  std::vector<int> bucket_of_;
  torch::Tensor words_;
  std::vector<std::vector<torch::Tensor>> firsts_;  // by bucket; empty until they are wanted
};

}  // namespace ddprun
