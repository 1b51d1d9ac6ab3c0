#include "worker_lib/collective/core/range.h"

#include <gtest/gtest.h>

#include "base/rng.h"

namespace ddprun {
namespace {

TEST(Range, IsCutIntoPartsThatAreMultiplesOfTheQuantum) {
  // 10 elements in quanta of 4 are two whole quanta and a rest.
  EXPECT_EQ(cut({0, 10}, 2, 0, 4), (Range{0, 8}));
  EXPECT_EQ(cut({0, 10}, 2, 1, 4), (Range{8, 10}));
  EXPECT_EQ(cut({100, 110}, 2, 1, 4), (Range{108, 110}));
}

TEST(Range, LeavesTheLastPartsEmptyWhenThereIsTooLittle) {
  EXPECT_EQ(cut({0, 3}, 4, 0, 16), (Range{0, 3}));
  for (std::size_t part = 1; part < 4; ++part) EXPECT_EQ(cut({0, 3}, 4, part, 16), (Range{3, 3}));
  EXPECT_TRUE(cut({0, 0}, 3, 1, 16).empty());
}

TEST(Range, PartsOfRandomCutsFollowOneAnotherAndDifferByAtMostOneQuantum) {
  Rng rng(7);
  for (int trial = 0; trial < 2000; ++trial) {
    const Range whole{rng.below(1000), 1000 + rng.below(1'000'000)};
    const std::size_t parts = 1 + rng.below(20);
    const std::size_t quantum = 1 + rng.below(64);
    std::size_t at = whole.begin;
    std::size_t longest = 0;
    std::size_t shortest_before_rest = whole.size();
    for (std::size_t part = 0; part < parts; ++part) {
      const Range range = cut(whole, parts, part, quantum);
      ASSERT_EQ(range.begin, at);
      at = range.end;
      longest = std::max(longest, range.size());
      if (range.end == whole.end) continue;
      ASSERT_EQ(range.size() % quantum, 0u);
      shortest_before_rest = std::min(shortest_before_rest, range.size());
    }
    ASSERT_EQ(at, whole.end);
    ASSERT_LE(longest, shortest_before_rest + quantum);
  }
}

TEST(Range, HandlesLengthsBeyondFourGibi) {
  const std::size_t huge = (std::size_t{1} << 40) + 3;
  EXPECT_EQ(cut({0, huge}, 3, 2, 16).end, huge);
  EXPECT_EQ(cut({0, huge}, 3, 0, 16).begin, 0u);
}

}  // namespace
}  // namespace ddprun
