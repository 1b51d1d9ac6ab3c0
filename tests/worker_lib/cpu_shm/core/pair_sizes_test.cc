#include "worker_lib/cpu_shm/core/pair_sizes.h"

#include <gtest/gtest.h>

#include "base/cache_line.h"
#include "tests/worker_lib/cpu_shm/core/layout_of.h"
#include "worker_lib/cpu_shm/core/segment_layout.h"

namespace ddprun {
namespace {

TEST(PairSizes, EvenOnesAreTheSameForAllPairs) {
  const PairSizes sizes = PairSizes::even(12);
  EXPECT_EQ(sizes.of(0, 5), 12u);
  EXPECT_EQ(sizes.of(3, 3), 12u);
  EXPECT_EQ(sizes.largest(), 12u);
  EXPECT_TRUE(sizes.is_even());
  EXPECT_FALSE(sizes.clash());
  EXPECT_TRUE(PairSizes::from_tables({3, 3, 3, 3, 3, 3, 3, 3}, 2).is_even());
}

TEST(PairSizes, TablesSayWhatEachPairHas) {
  // Rank 0 sends 1 and 2 and expects 1 and 30; rank 1 sends 30 and 4 and expects 2 and 4.
  const PairSizes sizes = PairSizes::from_tables({1, 2, 1, 30, 30, 4, 2, 4}, 2);
  EXPECT_FALSE(sizes.clash());
  EXPECT_EQ(sizes.of(0, 0), 1u);
  EXPECT_EQ(sizes.of(0, 1), 2u);
  EXPECT_EQ(sizes.of(1, 0), 30u);
  EXPECT_EQ(sizes.of(1, 1), 4u);
  EXPECT_EQ(sizes.largest(), 30u);
  EXPECT_FALSE(sizes.is_even());
}

TEST(PairSizes, TheFirstPairThatDisagreesIsNamed) {
  const PairSizes sizes = PairSizes::from_tables({1, 2, 1, 31, 30, 4, 3, 4}, 2);
  EXPECT_EQ(sizes.clash(), (PairSizes::Clash{.from = 0, .to = 1, .sent = 2, .expected = 3}));
}

TEST(PairSlots, AreOneForEachRankOnOneNode) { EXPECT_EQ(pair_slots(layout_of("aaa")), 3u); }

// "aab" has lane 0 alone. Its leader on a receives the data of one rank for two; on b, of two
// for one.
TEST(PairSlots, HaveRoomForWhatComesFromOtherNodes) {
  EXPECT_EQ(pair_slots(layout_of("aab")), 3u + 2u);
  EXPECT_EQ(pair_slots(layout_of("aabb")), 4u + 2u);
  EXPECT_EQ(pair_slots(layout_of("abcd")), 4u + 3u);
}

TEST(PairSlots, AreLinesOfAStageHoweverManyRanks) {
  EXPECT_EQ(pair_slot_bytes(layout_of("aa"), 256 << 10), 128u << 10);
  const NodeLayout many = layout_of(std::string(5000, 'a') + std::string(3, 'b'));
  EXPECT_GE(pair_slot_bytes(many, choose_stage_bytes(many, 4096)), kCacheLineBytes);
}

}  // namespace
}  // namespace ddprun
