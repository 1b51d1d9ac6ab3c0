#include "base/rng.h"

#include <gtest/gtest.h>

#include "base/random_id.h"

namespace ddprun {
namespace {

TEST(Rng, TheSameSeedGivesTheSameDrawsOnEveryPlatform) {
  Rng rng(42);
  // These are the first outputs of the C++ standard's mt19937_64 for this seed.
  EXPECT_EQ(rng.next(), 13930160852258120406ULL);
  EXPECT_EQ(rng.next(), 11788048577503494824ULL);
}

TEST(Rng, BelowStaysBelowAndReachesEveryOutcome) {
  Rng rng(1);
  int seen[5] = {};
  for (int i = 0; i < 1000; ++i) ++seen[rng.below(5)];
  for (const int count : seen) EXPECT_GT(count, 100);
}

TEST(Rng, ChanceFollowsItsProbability) {
  Rng rng(2);
  int hits = 0;
  for (int i = 0; i < 10000; ++i) hits += rng.chance(0.25) ? 1 : 0;
  EXPECT_NEAR(hits, 2500, 200);
  EXPECT_FALSE(rng.chance(0));
  EXPECT_TRUE(rng.chance(1));
}

TEST(RandomHex, HasTheLengthAskedForAndDoesNotRepeat) {
  EXPECT_EQ(random_hex(8).size(), 16u);
  EXPECT_NE(random_hex(8), random_hex(8));
}

}  // namespace
}  // namespace ddprun
