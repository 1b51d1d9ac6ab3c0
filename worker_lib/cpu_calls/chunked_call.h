// ChunkedCall: the steps of one collective for each of its chunks. SharedGroup drives it through
// the steps of a ChunkPipeline (cpu_shm/core/chunk_pipeline.h), so no collective itself waits
// for other ranks of its node.
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

// GroupTopology: this rank's place in the group, and what it shares with other ranks. Filled
// once when the group forms.
struct GroupTopology {
  int rank = -1;
  int node = -1;
  int local = -1;     // local index
  std::string title;  // CpuGroupOptions::title
  CpuTuning tuning;   // what was chosen for this group
  NodeLayout layout;
  SegmentLayout segment;
  char* memory = nullptr;  // the segment
  SharedProgress* progress = nullptr;
  TcpMesh* mesh = nullptr;     // null on a single node
  bool in_rank_order = false;  // reductions use the order of the ranks for every layout

  bool one_node() const { return layout.node_count() == 1; }
  // Returns whether there are several nodes of one rank each. Then the bytes that a rank sends
  // depend on no other rank of its node.
  bool one_rank_each() const { return !one_node() && layout.world_size() == layout.node_count(); }
  int local_count() const { return segment.local_count; }
  bool leads() const { return layout.leads_lane(rank); }  // its lane, whose number is `local`
  bool on_my_node(int other_rank) const { return layout.node_of[other_rank] == node; }
  // Returns the arrivals of a node's ranks, by local index; used with several nodes. An arrival
  // has the call of a rank and its inline bytes.
  Arrival* arrivals_of(int of_node) const {
    return reinterpret_cast<Arrival*>(memory + segment.arrivals) + layout.ranks_before[of_node];
  }
  const Arrival& arrival_of(int of_rank) const {
    return arrivals_of(layout.node_of[of_rank])[layout.local_of[of_rank]];
  }
  // Return how results are written if a rank gives and gets `bytes` bytes in all.
  bool streams(std::size_t bytes) const { return bytes >= tuning.stream_bytes; }
  CopyBytes result_copy(std::size_t bytes) const {
    return streams(bytes) ? stream_bytes : copy_bytes;
  }
  // Calls visit(node) for each other node. Node i begins with node i+1, so that not all nodes send
  // to the same one at first.
  template <class Visit>
  void for_each_other_node(Visit visit) const {
    const int nodes = layout.node_count();
    for (int step = 1; step < nodes; ++step) visit((node + step) % nodes);
  }
  // Returns a stage of a rank of this node.
  char* stage(int of_local, std::size_t chunk) const {
    return memory + segment.stage(of_local, chunk);
  }
};

using Sendings = std::vector<TcpMesh::Sending>;
using Receivings = std::vector<TcpMesh::Receiving>;

class ChunkedCall {
 public:
  // number: counts all chunks that the group ever had; it selects the stage.
  struct Chunk {
    std::size_t index = 0;  // within this call
    std::size_t number = 0;
    bool is_ahead = false;  // the bytes of sends_first() have been sent
  };

  explicit ChunkedCall(const GroupTopology& here) : here_(here) {}
  virtual ~ChunkedCall() = default;

  virtual std::size_t chunks() const { return 1; }
  virtual ChunkPipeline::Work work_mode() const { return ChunkPipeline::Work::kNone; }
  // Returns whether the bytes staged first travel with the header
  // (cpu_calls/inline_collectives.h).
  virtual bool is_inline() const { return false; }

  virtual void stage(const Chunk& chunk) = 0;
  // Returns what work() sends of a staged chunk before it receives anything, if each node has
  // one rank. For the first chunk it is sent directly after the header. If it turns out that not
  // all ranks made the same call, the group has failed anyway. Not for a call for which ranks
  // may have a shortcut.
  virtual Sendings sends_first(const Chunk&) { return {}; }
  // Works on a chunk that every rank has staged. Called on leaders of lanes only (on one node: on
  // all ranks). Returns how its exchanges with other ranks ended.
  virtual TcpMesh::End work(const Chunk&, TimePoint /*deadline*/) { return {}; }
  virtual void copy_out(const Chunk& chunk) = 0;

 protected:
  // Returns this rank's stage for the chunk.
  char* own_stage(const Chunk& chunk) const { return here_.stage(here_.local, chunk.number); }

  // Returns what sends_first() returns, unless it has been sent already.
  Sendings still_to_send(const Chunk& chunk) {
    if (chunk.is_ahead) return {};
    return sends_first(chunk);
  }

  const GroupTopology& here_;
};

// Returns the number of elements (of `element_bytes`) in a cache line. Cuts at multiples of it
// keep ranks from sharing a line.
constexpr std::size_t elements_per_line(std::size_t element_bytes) {
  return kCacheLineBytes / element_bytes;
}

}  // namespace ddprun
