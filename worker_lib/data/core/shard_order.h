// ShardOrder: which entries of an epoch's list a rank gets, and in which order. This is the
// arithmetic of the samplers.
//
// The epoch's list is an order of the dataset. Entries before `begin` have already been dealt,
// by earlier worlds. The rest is dealt in turn: of W ranks, rank r takes entries begin+r,
// begin+r+W, begin+r+2W, ... If the rest does not divide by W, it is padded with entries from
// the list's start, or cut with drop_last. So if every rank of a world has got d of its entries,
// exactly the next d*W entries of the list have been dealt. Any other world can continue from
// there. Method: PyTorch's torch.utils.data.DistributedSampler, which has begin = 0.
//
// Value type; any thread.
#pragma once

#include <cstddef>

namespace ddprun {

struct Shard {
  std::size_t dataset_size = 0;  // entries of the list, at least 1
  std::size_t world_size = 1;
  std::size_t rank = 0;
  bool drop_last = false;
  std::size_t begin = 0;  // beyond the end: nothing is left
};

class ShardOrder {
 public:
  explicit ShardOrder(Shard shard);

  // Returns the number of entries of one rank, the same on every rank.
  std::size_t size() const { return size_; }

  // Returns the list entry of this rank's i-th entry, i < size().
  std::size_t operator[](std::size_t i) const {
    return (shard_.begin + shard_.rank + i * shard_.world_size) % shard_.dataset_size;
  }

  // Returns how many entries of the list have been dealt when every rank has got i entries.
  std::size_t dealt(std::size_t i) const { return shard_.begin + i * shard_.world_size; }

 private:
  Shard shard_;
  std::size_t size_;
};

}  // namespace ddprun
