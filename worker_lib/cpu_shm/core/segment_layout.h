// SegmentLayout: the offsets of all parts of a node's shared-memory segment.
// docs/concepts/collectives.md draws it.
//
// Pure functions; thread-safe. All ranks of a node compute the same layout from the peer infos
// that they exchanged when the group formed. Offsets are in bytes. Every part begins on its own
// page, so unused memory of a part is never touched and costs nothing.
#pragma once

#include <cstddef>

#include "worker_lib/cpu_shm/core/node_layout.h"

namespace ddprun {

struct SegmentLayout {
  int local_count = 1;
  std::size_t stage_bytes = 0;  // of one stage; a rank has ChunkPipeline::kStages of them
  std::size_t ring_bytes = 0;   // of one message ring; there is one for each ordered pair of ranks

  std::size_t progress = 0;  // the failure word and the ranks' blocks
  std::size_t arrivals = 0;  // call headers of the whole world, by node and local index
  std::size_t stages = 0;
  std::size_t rings = 0;
  std::size_t total = 0;

  std::size_t stage(int local, std::size_t chunk) const;
  std::size_t ring(int from_local, int to_local) const;
};

// SegmentNeeds: the sizes of fixed structures in the segment; the caller knows their types.
struct SegmentNeeds {
  std::size_t progress_bytes = 0;
  std::size_t arrival_bytes = 0;      // a rank's call header and the bytes that travel with it
  std::size_t ring_header_bytes = 0;  // before the bytes of each ring
};

// stage_bytes: from choose_stage_bytes(), the same in the whole world.
SegmentLayout plan_segment(const NodeLayout& world, int node, std::size_t stage_bytes,
                           const SegmentNeeds& needs);

// Returns the bytes of one stage, the same in the whole world: `wanted`, or more with very many
// ranks.
std::size_t choose_stage_bytes(const NodeLayout& world, std::size_t wanted);

}  // namespace ddprun
