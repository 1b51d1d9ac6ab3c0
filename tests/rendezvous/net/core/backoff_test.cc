#include "rendezvous/net/core/backoff.h"

#include <gtest/gtest.h>

namespace ddprun {
namespace {

using namespace std::chrono_literals;

struct GrowthCase {
  const char* name;
  BackoffOptions options;
  std::vector<Duration> pauses;
};

TEST(Backoff, GrowsByItsFactorUpToTheLongestPause) {
  const std::vector<GrowthCase> cases{
      {"doubling",
       {.first = 10ms, .longest = 100ms, .factor = 2, .spread = 0},
       {10ms, 20ms, 40ms, 80ms, 100ms, 100ms}},
      {"constant", {.first = 10ms, .longest = 10ms, .factor = 2, .spread = 0}, {10ms, 10ms, 10ms}},
      {"no growth", {.first = 10ms, .longest = 1s, .factor = 1, .spread = 0}, {10ms, 10ms, 10ms}},
      {"past the range of the type",
       {.first = 1h, .longest = Duration::max(), .factor = 1e9, .spread = 0},
       {1h, Duration::max(), Duration::max()}},
  };
  for (const GrowthCase& one : cases) {
    Backoff backoff(Rng(1), one.options);
    for (const Duration pause : one.pauses) EXPECT_EQ(backoff.next(), pause) << one.name;
  }
}

TEST(Backoff, SpreadsEachPauseOnBothSidesOfItsNominalLength) {
  Backoff backoff(Rng(7), {.first = 100ms, .longest = 100ms, .factor = 2, .spread = 0.5});
  Duration least = 1h;
  Duration most = 0ms;
  for (int i = 0; i < 1000; ++i) {
    const Duration pause = backoff.next();
    least = std::min(least, pause);
    most = std::max(most, pause);
  }
  EXPECT_GE(least, 50ms);
  EXPECT_LT(least, 55ms);
  EXPECT_LE(most, 150ms);
  EXPECT_GT(most, 145ms);
}

TEST(Backoff, TwoClientsDoNotPauseAlike) {
  Backoff one(Rng(1)), other(Rng(2));
  int same = 0;
  for (int i = 0; i < 20; ++i) same += one.next() == other.next();
  EXPECT_LT(same, 2);
}

TEST(Backoff, BeginsAnewAfterReset) {
  Backoff backoff(Rng(1), {.first = 10ms, .longest = 1s, .factor = 2, .spread = 0});
  backoff.next();
  backoff.next();
  backoff.reset();
  EXPECT_EQ(backoff.next(), 10ms);
}

}  // namespace
}  // namespace ddprun
