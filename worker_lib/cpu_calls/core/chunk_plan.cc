#include "worker_lib/cpu_calls/core/chunk_plan.h"

#include <algorithm>

#include "base/assert.h"

namespace ddprun {

ChunkPlan::ChunkPlan(std::size_t total, std::size_t max_chunk, std::size_t quantum)
    : total_(total), quantum_(quantum) {
  DDPRUN_ASSERT(quantum > 0 && max_chunk >= quantum, "a chunk holds at least one quantum");
  const std::size_t longest = max_chunk / quantum;
  const std::size_t quanta = total / quantum + (total % quantum != 0);
  chunks_ = std::max<std::size_t>(1, (quanta + longest - 1) / longest);
}

Range ChunkShape::share(int lane) const {
  if (form_ != Form::kByRank) return cut({0, length_}, layout_->lanes, lane, quantum_);
  const Range positions = layout_->lane_positions(lane);
  return {positions.begin * length_, positions.end * length_};
}

Range ChunkShape::piece(int lane, int node) const {
  if (form_ == Form::kRepeated) return share(lane);
  if (form_ == Form::kEven) return cut(share(lane), layout_->nodes.size(), node, quantum_);
  const Range positions = layout_->lane_positions(lane, node);
  return {positions.begin * length_, positions.end * length_};
}

Range ChunkShape::block(int rank) const {
  DDPRUN_ASSERT(form_ == Form::kByRank, "only chunks by rank have blocks");
  const std::size_t position = layout_->position_of[rank];
  return {position * length_, (position + 1) * length_};
}

}  // namespace ddprun
