// Which samples of a dataset a rank gets, and in which order: the arithmetic of DistributedSampler.
//
// The epoch's list is a permutation of the dataset, repeated from its start until it divides by the
// world size (or cut, with drop_last). Rank r takes entries r, r+W, r+2W, ... of it. Method:
// PyTorch's torch.utils.data.DistributedSampler, so that both deal the same samples.
//
// Value type; any thread.
#pragma once

#include <cstddef>

namespace ddprun {

struct Shard {
  std::size_t dataset_size = 0;  // at least 1
  std::size_t world_size = 1;
  std::size_t rank = 0;
  bool drop_last = false;
};

class ShardOrder {
 public:
  explicit ShardOrder(Shard shard);

  // Samples of one rank in one epoch, the same number on every rank.
  std::size_t size() const { return size_; }

  // Where in the permutation this rank's i-th sample stands, i < size().
  std::size_t operator[](std::size_t i) const {
    return (shard_.rank + i * shard_.world_size) % shard_.dataset_size;
  }

 private:
  Shard shard_;
  std::size_t size_;
};

}  // namespace ddprun
