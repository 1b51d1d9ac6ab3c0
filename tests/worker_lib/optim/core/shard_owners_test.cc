#include "worker_lib/optim/core/shard_owners.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "base/rng.h"
#include "tests/support/test_seed.h"

namespace ddprun {
namespace {

using testing::Each;
using testing::ElementsAre;

TEST(ShardOwners, TheLargestGoesFirstToTheOneWithTheLeast) {
  ShardOwners owners(2);
  owners.add_group(std::vector<std::int64_t>{3, 10, 4, 4});
  EXPECT_THAT(owners.owners(), ElementsAre(1, 0, 1, 1));
  EXPECT_THAT(owners.elements(), ElementsAre(10, 11));
}

TEST(ShardOwners, OfEqualsTheFirstCounts) {
  ShardOwners owners(3);
  owners.add_group(std::vector<std::int64_t>{5, 5, 5, 5});
  EXPECT_THAT(owners.owners(), ElementsAre(0, 1, 2, 0));
}

TEST(ShardOwners, ALaterGroupFillsUpAndMovesNothing) {
  ShardOwners owners(2);
  owners.add_group(std::vector<std::int64_t>{8, 2});
  owners.add_group(std::vector<std::int64_t>{1, 5});
  EXPECT_THAT(owners.owners(), ElementsAre(0, 1, 1, 1));
  EXPECT_THAT(owners.elements(), ElementsAre(8, 8));
}

TEST(ShardOwners, MoreRanksThanParametersAndNoParameters) {
  ShardOwners owners(4);
  owners.add_group(std::vector<std::int64_t>{});
  owners.add_group(std::vector<std::int64_t>{1, 7});
  EXPECT_THAT(owners.owners(), ElementsAre(1, 0));
  ShardOwners alone(1);
  alone.add_group(std::vector<std::int64_t>{0, 3, 9});
  EXPECT_THAT(alone.owners(), Each(0));
}

// Graham's bound for this order: no rank has more than 4/3 of its part in the best partition.
// That part is at least an equal share and at least the largest parameter.
TEST(ShardOwners, NoRankHasMuchMoreThanItsShare) {
  const std::uint64_t seed = testing_support::test_seed(20261124);
  SCOPED_TRACE(testing_support::seed_text(seed));
  Rng rng(seed);
  for (int round = 0; round < 300; ++round) {
    const int world = 1 + static_cast<int>(rng.next() % 16);
    std::vector<std::int64_t> sizes(1 + rng.next() % 60);
    for (std::int64_t& size : sizes) size = static_cast<std::int64_t>(rng.next() % 10'000);
    ShardOwners owners(world);
    owners.add_group(sizes);
    const std::int64_t all = std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
    EXPECT_EQ(std::accumulate(owners.elements().begin(), owners.elements().end(), std::int64_t{0}),
              all);
    // A greedy assignment in any order stays below the equal share plus one parameter.
    EXPECT_LE(*std::ranges::max_element(owners.elements()),
              all / world + 1 + *std::ranges::max_element(sizes));
  }
}

}  // namespace
}  // namespace ddprun
