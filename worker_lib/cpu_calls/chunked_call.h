// ChunkedCall: what one collective does with each of its chunks. SharedGroup drives it through the
// steps of a ChunkPipeline (cpu_shm/core/chunk_pipeline.h), so no collective waits for other ranks of its
// node itself.
//
// An object lives for one call, on the thread that makes it.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "base/cache_line.h"
#include "worker_lib/collective/call_header.h"
#include "worker_lib/collective/core/scattered.h"
#include "worker_lib/cpu_kernels/stream_copy.h"
#include "worker_lib/cpu_kernels/tuning.h"
#include "worker_lib/cpu_peers/tcp_mesh.h"
#include "worker_lib/cpu_shm/core/chunk_pipeline.h"
#include "worker_lib/cpu_shm/core/node_layout.h"
#include "worker_lib/cpu_shm/core/segment_layout.h"

namespace ddprun {

// Where this rank is, and what it shares with others. Filled once when the group is formed.
struct GroupTopology {
  int rank = -1;
  int node = -1;
  int local = -1;     // place on the node
  std::string title;  // CpuGroupOptions
  CpuTuning tuning;   // the same
  NodeLayout layout;
  SegmentLayout segment;
  char* memory = nullptr;  // the segment
  SharedProgress* progress = nullptr;
  TcpMesh* mesh = nullptr;     // null on a single node
  bool in_rank_order = false;  // reductions, whatever the layout

  bool one_node() const { return layout.node_count() == 1; }
  // Several nodes, of one rank each: what a rank sends hangs on nobody else of its node.
  bool one_rank_each() const { return !one_node() && layout.world_size() == layout.node_count(); }
  int local_count() const { return segment.local_count; }
  bool leads() const { return layout.leads_lane(rank); }  // its lane, whose number is `local`
  bool on_my_node(int other_rank) const { return layout.node_of[other_rank] == node; }
  // What each rank called and gave when it came, with several nodes; those of a node lie side by side.
  Arrival* arrivals_of(int of_node) const {
    return reinterpret_cast<Arrival*>(memory + segment.arrivals) + layout.ranks_before[of_node];
  }
  const Arrival& arrival_of(int of_rank) const {
    return arrivals_of(layout.node_of[of_rank])[layout.local_of[of_rank]];
  }
  // How results are written where a rank gives and gets so many bytes in all.
  bool streams(std::size_t bytes) const { return bytes >= tuning.stream_bytes; }
  CopyBytes result_copy(std::size_t bytes) const {
    return streams(bytes) ? stream_bytes : copy_bytes;
  }
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
    bool is_ahead = false;  // what sends_first() says of it has been sent
  };

  virtual ~ChunkedCall() = default;

  virtual std::size_t chunks() const = 0;
  virtual ChunkPipeline::Work work_mode() const = 0;
  // Whether what is staged first is to travel with the header (cpu_calls/inline_collectives.h).
  virtual bool is_inline() const { return false; }

  virtual void stage(const Chunk& chunk) = 0;
  // What work() sends of a staged chunk before it has received anything, where each node has one rank. Of
  // the first chunk that goes right behind the header: if it turns out that not all have called the same,
  // the group is at its end anyway. Not for a call that ranks may know a shortcut of.
  virtual std::vector<TcpMesh::Sending> sends_first(const Chunk&) { return {}; }
  // Leaders of lanes only (on one node: all): everyone has staged the chunk. Returns how what it took
  // of other ranks ended.
  virtual TcpMesh::End work(const Chunk& chunk, TimePoint deadline) = 0;
  virtual void copy_out(const Chunk& chunk) = 0;

 protected:
  // What sends_first() says, as far as it has not been sent.
  std::vector<TcpMesh::Sending> still_to_send(const Chunk& chunk) {
    if (chunk.is_ahead) return {};
    return sends_first(chunk);
  }
};

// Elements (of `element_bytes`) in a cache line: cuts at multiples of it keep ranks off each
// other's lines.
constexpr std::size_t elements_per_line(std::size_t element_bytes) {
  return kCacheLineBytes / element_bytes;
}

}  // namespace ddprun
