#include "worker_lib/cpu_shm/core/segment_layout.h"

#include <gtest/gtest.h>

#include <map>

#include "worker_lib/cpu_shm/core/chunk_pipeline.h"

namespace ddprun {
namespace {

constexpr SegmentNeeds kNeeds{
    .progress_bytes = 5000, .arrival_bytes = 32, .ring_header_bytes = 128};

NodeLayout one_node(int ranks) { return make_node_layout(std::vector<std::string>(ranks, "a")); }

TEST(SegmentLayout, PartsLieOnPagesOfTheirOwnAndDoNotOverlap) {
  for (const int ranks : {1, 2, 3, 8, 64}) {
    const SegmentLayout layout = plan_segment(one_node(ranks), 0, 100'000, kNeeds);
    std::map<std::size_t, std::size_t> parts{{layout.progress, kNeeds.progress_bytes},
                                             {layout.arrivals, kNeeds.arrival_bytes * ranks}};
    for (int from = 0; from < ranks; ++from) {
      for (std::size_t chunk = 0; chunk < ChunkPipeline::kStages; ++chunk) {
        parts[layout.stage(from, chunk)] = layout.stage_bytes;
      }
      for (int to = 0; to < ranks; ++to) parts[layout.ring(from, to)] = layout.ring_bytes;
    }
    ASSERT_EQ(parts.size(), 2 + ranks * (ChunkPipeline::kStages + ranks));
    std::size_t end = 0;
    for (const auto& [offset, bytes] : parts) {
      EXPECT_GE(offset, end);
      EXPECT_EQ(offset % 4096, 0u);
      end = offset + bytes;
    }
    EXPECT_GE(layout.total, end);
  }
}

TEST(SegmentLayout, StagesAreUsedInTurn) {
  const SegmentLayout layout = plan_segment(one_node(2), 0, 4096, kNeeds);
  EXPECT_EQ(layout.stage(1, 2), layout.stage(1, 2 + ChunkPipeline::kStages));
  EXPECT_NE(layout.stage(1, 2), layout.stage(1, 3));
}

TEST(SegmentLayout, StaysModestWithManyRanks) {
  EXPECT_LE(
      plan_segment(one_node(128), 0, choose_stage_bytes(one_node(128), 512 << 10), kNeeds).total,
      std::size_t{2} << 30);
}

TEST(SegmentLayout, AStageHasTheBytesThatAreWanted) {
  EXPECT_EQ(choose_stage_bytes(one_node(2), 4096), 4096u);
}

TEST(SegmentLayout, AStageHoldsALineForEveryRankOfALargeWorld) {
  const NodeLayout world = one_node(20'000);
  EXPECT_GE(choose_stage_bytes(world, 4096), 64u * 20'001);
}

}  // namespace
}  // namespace ddprun
