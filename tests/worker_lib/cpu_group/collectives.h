// The collectives and sizes that cpu_test_rank (rank_main.cc) can run, for tests that go
// through all of them.
#pragma once

#include <cstddef>
#include <string>

#include "tests/worker_lib/cpu_shm/core/layout_of.h"
#include "worker_lib/cpu_group/shared_group.h"
#include "worker_lib/cpu_kernels/tuning.h"
#include "worker_lib/cpu_shm/core/chunk_pipeline.h"
#include "worker_lib/cpu_shm/core/segment_layout.h"

namespace ddprun {

inline constexpr const char* kCollectives[] = {
    "all_reduce", "all_reduce_list", "all_reduce_shared", "reduce",
    "broadcast",  "all_gather",      "reduce_scatter",    "gather",
    "scatter",    "all_to_all",      "barrier",           "all_to_all_uneven",
    "send_recv",  "any_source",      "isend_irecv"};

// The sizes differ in how the engine handles them: all at once; in one chunk; in more chunks
// than it has stages; more than the whole segment holds.
inline constexpr const char* kSizes[] = {"tiny", "chunk", "chunks", "segment"};

inline std::size_t bytes_of(const std::string& size, const std::string& letters) {
  if (size == "tiny") return 24;
  const NodeLayout layout = layout_of(letters);
  const std::size_t stage =
      choose_stage_bytes(layout, choose_tuning({.nodes = layout.node_count()}).stage_bytes);
  if (size == "chunk") return stage / 2 + 4;
  if (size == "chunks") return (ChunkPipeline::kStages + 1) * stage + 4;
  const SegmentNeeds needs = shared_segment_needs(layout.local_count(0), layout.world_size());
  return plan_segment(layout, 0, stage, needs).total + 4;
}

}  // namespace ddprun
