#include "worker_lib/data/core/shard_order.h"

#include "base/assert.h"

namespace ddprun {

ShardOrder::ShardOrder(Shard shard) : shard_(shard) {
  DDPRUN_ASSERT(shard.dataset_size > 0, "the sampler refuses an empty dataset");
  DDPRUN_ASSERT(shard.rank < shard.world_size, "the sampler refuses a rank outside the world");
  const std::size_t left = shard.begin < shard.dataset_size ? shard.dataset_size - shard.begin : 0;
  size_ =
      shard.drop_last ? left / shard.world_size : (left + shard.world_size - 1) / shard.world_size;
}

}  // namespace ddprun
