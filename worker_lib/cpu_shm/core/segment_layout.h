// SegmentLayout: where everything lies in a node's shared-memory segment. docs/collectives.md draws
// it.
//
// Pure functions; any thread. All ranks of a node compute the same layout from what they told each
// other when the group was formed. Offsets are in bytes; every part begins on its own page, so
// memory that a part does not use is never touched and costs nothing.
#pragma once

#include <cstddef>

#include "worker_lib/cpu_shm/core/node_layout.h"

namespace ddprun {

struct SegmentLayout {
  int local_count = 1;
  std::size_t stage_bytes = 0;  // of one stage; a rank has ChunkPipeline::kStages of them
  std::size_t ring_bytes = 0;   // of one point-to-point ring; there is one for each ordered pair

  std::size_t progress = 0;     // the failure word and the ranks' blocks
  std::size_t arrivals = 0;  // call headers of the whole world, by node and place on it
  std::size_t stages = 0;
  std::size_t rings = 0;
  std::size_t total = 0;

  std::size_t stage(int local, std::size_t chunk) const;
  std::size_t ring(int from_local, int to_local) const;
};

// Bytes that the parts made of fixed structures need; the shell knows their types.
struct SegmentNeeds {
  std::size_t board_bytes = 0;
  std::size_t arrival_bytes = 0;      // a rank's call header and what travels with it
  std::size_t ring_header_bytes = 0;  // in front of each ring
};

// stage_bytes: choose_stage_bytes(), the same in the whole world.
SegmentLayout plan_segment(const NodeLayout& world, int node, std::size_t stage_bytes,
                           const SegmentNeeds& needs);

// Bytes of one stage, the same in the whole world: those wanted, or more where it has very many ranks.
std::size_t choose_stage_bytes(const NodeLayout& world, std::size_t wanted);

}  // namespace ddprun
