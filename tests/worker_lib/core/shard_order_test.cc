#include "worker_lib/core/shard_order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace ddprun {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

std::vector<std::size_t> positions(Shard shard) {
  const ShardOrder order(shard);
  std::vector<std::size_t> result;
  for (std::size_t i = 0; i < order.size(); ++i) result.push_back(order[i]);
  return result;
}

TEST(ShardOrder, DealsEntriesInTurnAndRepeatsTheFirstOnesAtTheEnd) {
  EXPECT_THAT(positions({.dataset_size = 10, .world_size = 3, .rank = 0}), ElementsAre(0, 3, 6, 9));
  EXPECT_THAT(positions({.dataset_size = 10, .world_size = 3, .rank = 1}), ElementsAre(1, 4, 7, 0));
  EXPECT_THAT(positions({.dataset_size = 10, .world_size = 3, .rank = 2}), ElementsAre(2, 5, 8, 1));
}

TEST(ShardOrder, DropLastCutsWhatDoesNotDivide) {
  EXPECT_THAT(positions({.dataset_size = 10, .world_size = 3, .rank = 2, .drop_last = true}),
              ElementsAre(2, 5, 8));
}

TEST(ShardOrder, ASmallDatasetIsRepeatedAsOftenAsNeeded) {
  for (std::size_t rank = 0; rank < 5; ++rank)
    EXPECT_THAT(positions({.dataset_size = 2, .world_size = 5, .rank = rank}),
                ElementsAre(rank % 2));
}

TEST(ShardOrder, DropLastLeavesNothingOfADatasetSmallerThanTheWorld) {
  EXPECT_THAT(positions({.dataset_size = 2, .world_size = 5, .rank = 0, .drop_last = true}),
              IsEmpty());
}

}  // namespace
}  // namespace ddprun
