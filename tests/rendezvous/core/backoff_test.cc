#include "rendezvous/core/backoff.h"

#include <gtest/gtest.h>

namespace ddprun {
namespace {

using std::chrono::milliseconds;

TEST(Backoff, PausesGrowWithinTheirBoundsUpToTheCap) {
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    Rng rng(seed);
    Backoff backoff({.initial = milliseconds(100), .cap = milliseconds(1000), .factor = 2});
    Duration bound = milliseconds(100);
    for (int i = 0; i < 10; ++i) {
      const Duration pause = backoff.next(rng);
      EXPECT_GE(pause, bound / 2);
      EXPECT_LE(pause, bound);
      bound = std::min<Duration>(bound * 2, milliseconds(1000));
    }
  }
}

TEST(Backoff, AgentsThatLostOneServiceDoNotComeBackAtOneInstant) {
  Rng one(1);
  Rng two(2);
  EXPECT_NE(Backoff(BackoffOptions{}).next(one), Backoff(BackoffOptions{}).next(two));
}

TEST(Backoff, ResetBeginsAgain) {
  Rng rng(1);
  Backoff backoff({.initial = milliseconds(100), .cap = milliseconds(10000), .factor = 10});
  backoff.next(rng);
  backoff.next(rng);
  backoff.reset();
  EXPECT_LE(backoff.next(rng), milliseconds(100));
}

}  // namespace
}  // namespace ddprun
