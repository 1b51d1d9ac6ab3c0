#include "worker_lib/cpu_calls/core/chunk_plan.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/rng.h"
#include "tests/worker_lib/cpu_shm/core/layout_of.h"

namespace ddprun {
namespace {

TEST(ChunkPlan, MakesOneEmptyChunkOfNothing) {
  const ChunkPlan plan(0, 1024, 16);
  EXPECT_EQ(plan.chunks(), 1u);
  EXPECT_TRUE(plan.at(0).empty());
}

TEST(ChunkPlan, MakesChunksOfSimilarLengthInsteadOfAShortLastOne) {
  const ChunkPlan plan(1040, 1024, 16);
  EXPECT_EQ(plan.chunks(), 2u);
  EXPECT_EQ(plan.at(0), (Range{0, 528}));
  EXPECT_EQ(plan.at(1), (Range{528, 1040}));
}

TEST(ChunkPlan, RandomPlansCoverTheBufferWithChunksThatFit) {
  Rng rng(3);
  for (int trial = 0; trial < 2000; ++trial) {
    const std::size_t quantum = 1 + rng.below(64);
    const std::size_t max_chunk = quantum + rng.below(5000);
    const std::size_t total = rng.below(200'000);
    const ChunkPlan plan(total, max_chunk, quantum);
    std::size_t at = 0;
    for (std::size_t i = 0; i < plan.chunks(); ++i) {
      ASSERT_EQ(plan.at(i).begin, at);
      ASSERT_LE(plan.at(i).size(), max_chunk);
      ASSERT_TRUE(total == 0 || !plan.at(i).empty());
      at = plan.at(i).end;
    }
    ASSERT_EQ(at, total);
  }
}

TEST(ChunkPlan, HandlesBuffersBeyondFourGibi) {
  const std::size_t huge = std::size_t{5} << 32;
  const ChunkPlan plan(huge, 65536, 16);
  EXPECT_EQ(plan.chunks(), huge / 65536);
  EXPECT_EQ(plan.at(plan.chunks() - 1).end, huge);
}

TEST(ChunkShape, EvenSharesAndPiecesTileTheChunk) {
  for (const char* letters : {"a", "aa", "aab", "aabb", "abc", "aaabbcc"}) {
    const NodeLayout layout = layout_of(letters);
    for (const std::size_t length : {0, 1, 15, 16, 17, 1000, 65536}) {
      const ChunkShape shape = ChunkShape::even(layout, length, 16);
      std::size_t at = 0;
      for (int lane = 0; lane < layout.lanes; ++lane) {
        EXPECT_EQ(shape.share(lane).begin, at);
        for (int node = 0; node < layout.node_count(); ++node) {
          EXPECT_EQ(shape.piece(lane, node).begin, at) << letters << " " << length;
          at = shape.piece(lane, node).end;
        }
        EXPECT_EQ(shape.share(lane).end, at);
      }
      EXPECT_EQ(at, length);
    }
  }
}

TEST(ChunkShape, ByRankPiecesHoldTheBlocksOfTheRanksTheyAreFor) {
  for (const char* letters : {"a", "aaa", "aab", "abab", "aaabb", "aaaaabbc"}) {
    const NodeLayout layout = layout_of(letters);
    const ChunkShape shape = ChunkShape::by_rank(layout, 10);
    std::vector<int> owners(static_cast<std::size_t>(10 * layout.world_size()), -1);
    for (int rank = 0; rank < layout.world_size(); ++rank) {
      const Range block = shape.block(rank);
      const Range piece = shape.piece(layout.lane_of(rank), layout.node_of[rank]);
      EXPECT_EQ(block.size(), 10u);
      EXPECT_TRUE(piece.begin <= block.begin && block.end <= piece.end)
          << letters << " rank " << rank;
      for (std::size_t i = block.begin; i < block.end; ++i) {
        EXPECT_EQ(owners.at(i), -1);
        owners.at(i) = rank;
      }
    }
  }
}

}  // namespace
}  // namespace ddprun
