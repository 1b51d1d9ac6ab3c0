#include "worker_lib/cpu_shm/core/pair_sizes.h"

#include <algorithm>

#include "base/assert.h"
#include "base/cache_line.h"

namespace ddprun {

PairSizes PairSizes::even(std::size_t bytes) {
  PairSizes sizes;
  sizes.even_ = sizes.smallest_ = sizes.largest_ = bytes;
  return sizes;
}

PairSizes PairSizes::from_tables(const std::vector<std::uint64_t>& tables, std::size_t ranks) {
  DDPRUN_ASSERT(tables.size() == 2 * ranks * ranks, "every rank has a table of both directions");
  PairSizes sizes;
  sizes.world_ = ranks;
  sizes.smallest_ = tables[0];
  sizes.sent_.reserve(ranks * ranks);
  for (std::size_t from = 0; from < ranks; ++from) {
    for (std::size_t to = 0; to < ranks; ++to) {
      const std::uint64_t sent = tables[from * 2 * ranks + to];
      const std::uint64_t expected = tables[to * 2 * ranks + ranks + from];
      sizes.sent_.push_back(sent);
      sizes.smallest_ = std::min<std::size_t>(sizes.smallest_, sent);
      sizes.largest_ = std::max<std::size_t>(sizes.largest_, sent);
      if (sent != expected && !sizes.clash_) {
        sizes.clash_ = {static_cast<int>(from), static_cast<int>(to), sent, expected};
      }
    }
  }
  return sizes;
}

std::size_t pair_slots(const NodeLayout& layout) {
  const std::size_t world = layout.world_size();
  std::size_t most = 0;
  for (int node = 0; node < layout.node_count(); ++node) {
    const std::size_t elsewhere = world - layout.local_count(node);
    for (int lane = 0; lane < layout.lanes; ++lane) {
      most = std::max(most, elsewhere * layout.lane_positions(lane, node).size());
    }
  }
  return world + most;
}

std::size_t pair_slot_bytes(const NodeLayout& layout, std::size_t stage_bytes) {
  const std::size_t bytes = stage_bytes / pair_slots(layout) / kCacheLineBytes * kCacheLineBytes;
  DDPRUN_ASSERT(bytes > 0, "a stage has a line for every pair (choose_stage_bytes)");
  return bytes;
}

}  // namespace ddprun
