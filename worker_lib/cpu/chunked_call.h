// ChunkedCall: what one collective does with each of its chunks. SharedGroup drives it through the
// steps of a ChunkPipeline (core/chunk_pipeline.h), so no collective waits for other ranks of its
// node itself.
//
// An object lives for one call, on the thread that makes it.
#pragma once

#include <cstddef>
#include <string>

#include "worker_lib/core/chunk_pipeline.h"
#include "worker_lib/core/node_layout.h"
#include "worker_lib/core/scattered.h"
#include "worker_lib/core/segment_layout.h"
#include "worker_lib/cpu/tcp_mesh.h"

namespace ddprun {

// Where this rank is, and what it shares with others. Filled once when the group is formed.
struct Surroundings {
  int rank = -1;
  int node = -1;
  int local = -1;     // place on the node
  std::string title;  // CpuGroupOptions
  NodeLayout layout;
  SegmentLayout segment;
  char* memory = nullptr;   // the segment
  TcpMesh* mesh = nullptr;  // null on a single node

  bool one_node() const { return layout.node_count() == 1; }
  int local_count() const { return segment.local_count; }
  bool leads() const { return layout.leads_lane(rank); }  // its lane, whose number is `local`
  bool on_my_node(int other_rank) const { return layout.node_of[other_rank] == node; }
  // Stage of a rank of this node.
  char* stage(int of_local, std::size_t chunk) const {
    return memory + segment.stage(of_local, chunk);
  }
};

class ChunkedCall {
 public:
  // number: of the chunk among all that the group ever had; it selects the stage.
  struct Chunk {
    std::size_t index = 0;  // within this call
    std::size_t number = 0;
  };

  virtual ~ChunkedCall() = default;

  virtual std::size_t chunks() const = 0;
  virtual ChunkPipeline::Work work_mode() const = 0;

  virtual void stage(const Chunk& chunk) = 0;
  // Leaders of lanes only: everyone has staged the chunk; returns how talking to other nodes ended.
  virtual TcpMesh::End work(const Chunk& chunk, TimePoint deadline) = 0;
  virtual void copy_out(const Chunk& chunk) = 0;
};

// Elements (of `element_bytes`) in a cache line: cuts at multiples of it keep ranks off each
// other's lines.
constexpr std::size_t elements_per_line(std::size_t element_bytes) {
  return kCacheLineBytes / element_bytes;
}

}  // namespace ddprun
