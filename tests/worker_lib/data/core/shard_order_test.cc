#include "worker_lib/data/core/shard_order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
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

TEST(ShardOrder, AnotherWorldGoesOnWhereTheOneBeforeEnded) {
  // A world of 3 has dealt 6 of 10 entries. Two ranks share the other 4. Three ranks repeat
  // entries, so that each has the same number.
  EXPECT_THAT(positions({.dataset_size = 10, .world_size = 2, .rank = 1, .begin = 6}),
              ElementsAre(7, 9));
  EXPECT_THAT(positions({.dataset_size = 10, .world_size = 3, .rank = 2, .begin = 6}),
              ElementsAre(8, 1));
  EXPECT_THAT(
      positions({.dataset_size = 10, .world_size = 3, .rank = 2, .drop_last = true, .begin = 6}),
      ElementsAre(8));
  // The position is after the end, because the last world repeated entries.
  EXPECT_THAT(positions({.dataset_size = 10, .world_size = 3, .rank = 0, .begin = 12}), IsEmpty());
}

// DealtHistory: one epoch of a training run. The world is killed at random moments, comes back
// with any size, and resumes from its last checkpoint. The history counts the entries that the
// final weights have seen.
class DealtHistory {
 public:
  static constexpr std::size_t kLargestWorld = 9;

  DealtHistory(std::mt19937& random, bool drop_last)
      : random_(random), drop_last_(drop_last), list_(1 + random() % 60), seen_(list_) {}

  void run() {
    while (!is_over_) live_once();
  }

  // Expects that every entry was seen once. Only at the end may entries be repeated or left
  // out.
  void check() const {
    const std::size_t repeated = dealt_ > list_ ? dealt_ - list_ : 0;
    for (std::size_t entry = 0; entry < list_; ++entry) {
      const std::size_t again = repeated / list_ + (entry < repeated % list_ ? 1 : 0);
      EXPECT_EQ(seen_[entry], (entry < dealt_ ? 1 : 0) + again) << entry << " of " << list_;
    }
    EXPECT_LT(repeated, drop_last_ ? 1 : kLargestWorld);
    EXPECT_LE(list_, dealt_ + (drop_last_ ? last_world_ - 1 : 0));
  }

  int kills() const { return kills_; }

 private:
  // Runs from the last checkpoint to a kill, or to the end of the epoch.
  void live_once() {
    last_world_ = 1 + random_() % kLargestWorld;
    std::vector<ShardOrder> ranks;
    for (std::size_t rank = 0; rank < last_world_; ++rank)
      ranks.emplace_back(Shard{.dataset_size = list_,
                               .world_size = last_world_,
                               .rank = rank,
                               .drop_last = drop_last_,
                               .begin = dealt_});
    std::vector<std::size_t> seen = seen_;
    for (std::size_t at = 0; at < ranks[0].size();) {
      const std::size_t end = std::min(at + 1 + random_() % 5, ranks[0].size());
      for (; at < end; ++at)
        for (const ShardOrder& rank : ranks) ++seen[rank[at]];
      if (random_() % 3 == 0) {
        seen_ = seen;
        dealt_ = ranks[0].dealt(at);
      }
      if (random_() % 4 == 0) {
        ++kills_;
        return;
      }
    }
    seen_ = seen;
    dealt_ = ranks[0].dealt(ranks[0].size());
    is_over_ = true;
  }

  std::mt19937& random_;
  const bool drop_last_;
  const std::size_t list_;
  std::size_t dealt_ = 0;  // at the last checkpoint
  std::size_t last_world_ = 1;
  std::vector<std::size_t> seen_;  // by the weights of the last checkpoint
  int kills_ = 0;
  bool is_over_ = false;
};

TEST(ShardOrder, EveryEntryIsSeenOnceHoweverOftenTheWorldIsKilledAndResized) {
  std::mt19937 random(20261123);
  int kills = 0;
  for (int history = 0; history < 20'000 && !testing::Test::HasFailure(); ++history) {
    DealtHistory one(random, /*drop_last=*/history % 2 == 1);
    one.run();
    one.check();
    kills += one.kills();
  }
  EXPECT_GT(kills, 10'000);
}

}  // namespace
}  // namespace ddprun
