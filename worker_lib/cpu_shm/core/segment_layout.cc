#include "worker_lib/cpu_shm/core/segment_layout.h"

#include <algorithm>

#include "base/cache_line.h"
#include "worker_lib/cpu_shm/core/chunk_pipeline.h"
#include "worker_lib/cpu_shm/core/pair_sizes.h"

namespace ddprun {
namespace {

constexpr std::size_t kPage = 4096;

std::size_t to_pages(std::size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

}  // namespace

std::size_t SegmentLayout::stage(int local, std::size_t chunk) const {
  const std::size_t index = local * ChunkPipeline::kStages + chunk % ChunkPipeline::kStages;
  return stages + index * stage_bytes;
}

std::size_t SegmentLayout::ring(int from_local, int to_local) const {
  const std::size_t index = static_cast<std::size_t>(from_local) * local_count + to_local;
  return rings + index * ring_bytes;
}

SegmentLayout plan_segment(const NodeLayout& world, int node, std::size_t stage_bytes,
                           const SegmentNeeds& needs) {
  SegmentLayout layout;
  layout.local_count = world.local_count(node);
  layout.stage_bytes = to_pages(stage_bytes);
  const std::size_t locals = layout.local_count;
  // 256 KiB hide the delay of the hand-over between two ranks. With very many ranks the total,
  // which grows with their square, must stay small.
  layout.ring_bytes = to_pages(
      std::clamp<std::size_t>((std::size_t{64} << 20) / (locals * locals), 16 << 10, 256 << 10) +
      needs.ring_header_bytes);
  layout.arrivals = to_pages(needs.progress_bytes);
  layout.stages = layout.arrivals + to_pages(needs.arrival_bytes * world.world_size());
  layout.rings = layout.stages + locals * ChunkPipeline::kStages * layout.stage_bytes;
  layout.total = layout.rings + locals * locals * layout.ring_bytes;
  return layout;
}

std::size_t choose_stage_bytes(const NodeLayout& world, std::size_t wanted) {
  // Collectives that move a block for every rank need at least a cache line for each rank.
  // all_to_all needs most: a line for every pair of ranks that uses the stage.
  return std::max<std::size_t>(wanted, kCacheLineBytes * (pair_slots(world) + 1));
}

}  // namespace ddprun
