#include "worker_lib/cpu_shm/core/free_ranges.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "base/rng.h"

namespace ddprun {
namespace {

constexpr std::size_t kPage = FreeRanges::kPage;

TEST(FreeRanges, BlocksLieOnPagesOneBehindTheOther) {
  FreeRanges heap(10 * kPage);
  EXPECT_EQ(heap.take(1), 0u);
  EXPECT_EQ(heap.take(kPage), kPage);
  EXPECT_EQ(heap.take(kPage + 1), 2 * kPage);
  EXPECT_EQ(heap.take(0), 4 * kPage);
  EXPECT_EQ(heap.take(0), 5 * kPage);
}

TEST(FreeRanges, WhatFitsNowhereIsRefused) {
  FreeRanges heap(2 * kPage + 100);
  EXPECT_FALSE(heap.take(2 * kPage + 1));
  EXPECT_FALSE(heap.take(std::numeric_limits<std::size_t>::max()));
  EXPECT_EQ(heap.take(2 * kPage), 0u);
  EXPECT_FALSE(heap.take(1));
  EXPECT_FALSE(FreeRanges(0).take(0));
}

TEST(FreeRanges, WhatIsGivenBackIsOneGapAgain) {
  FreeRanges heap(3 * kPage);
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(heap.take(kPage));
  heap.give_back(0, kPage);
  heap.give_back(2 * kPage, kPage);
  EXPECT_FALSE(heap.take(2 * kPage));
  heap.give_back(kPage, kPage);
  EXPECT_EQ(heap.take(3 * kPage), 0u);
}

// Compares with a list of single pages.
TEST(FreeRanges, RandomBlocksNeverOverlapAndNothingIsLost) {
  Rng rng(5);
  constexpr std::size_t kPages = 64;
  FreeRanges heap(kPages * kPage);
  std::vector<bool> used(kPages);
  struct Block {
    std::size_t begin, bytes;
  };
  std::vector<Block> blocks;
  const auto mark = [&](const Block& block, bool to) {
    for (std::size_t at = 0; at < FreeRanges::in_pages(block.bytes); at += kPage) {
      const std::size_t page = (block.begin + at) / kPage;
      ASSERT_LT(page, kPages);
      ASSERT_NE(used[page], to);
      used[page] = to;
    }
  };
  const auto longest_gap = [&] {
    std::size_t longest = 0, run = 0;
    for (const bool is_used : used) longest = std::max(longest, run = is_used ? 0 : run + 1);
    return longest * kPage;
  };
  for (int step = 0; step < 5000; ++step) {
    if (!blocks.empty() && rng.chance(0.5)) {
      const std::size_t at = rng.below(blocks.size());
      mark(blocks[at], false);
      heap.give_back(blocks[at].begin, blocks[at].bytes);
      blocks.erase(blocks.begin() + static_cast<std::ptrdiff_t>(at));
      continue;
    }
    const std::size_t bytes = rng.below(8 * kPage);
    const bool fits = FreeRanges::in_pages(bytes) <= longest_gap();
    const auto begin = heap.take(bytes);
    ASSERT_EQ(begin.has_value(), fits);
    if (!begin) continue;
    blocks.push_back({*begin, bytes});
    mark(blocks.back(), true);
  }
}

}  // namespace
}  // namespace ddprun
