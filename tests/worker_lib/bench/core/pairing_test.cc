#include "worker_lib/bench/core/pairing.h"

#include <gtest/gtest.h>

#include <set>

namespace ddprun {
namespace {

TEST(PairRounds, HaveEachPairOnceAndEachNodeOnceInARound) {
  for (int nodes = 1; nodes <= 33; ++nodes) {
    std::set<std::pair<int, int>> seen;
    const auto rounds = pair_rounds(nodes);
    for (const auto& pairs : rounds) {
      std::set<int> busy;
      for (const auto& pair : pairs) {
        EXPECT_LT(pair.first, pair.second) << nodes;
        EXPECT_TRUE(seen.insert(pair).second) << nodes;
        EXPECT_TRUE(busy.insert(pair.first).second) << nodes;
        EXPECT_TRUE(busy.insert(pair.second).second) << nodes;
      }
    }
    EXPECT_EQ(seen.size(), static_cast<std::size_t>(nodes * (nodes - 1) / 2));
    EXPECT_LE(rounds.size(), static_cast<std::size_t>(nodes)) << nodes;
  }
}

TEST(PairRounds, OfOneNodeAreNone) { EXPECT_TRUE(pair_rounds(1).empty()); }

}  // namespace
}  // namespace ddprun
