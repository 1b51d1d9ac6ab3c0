// The collectives that move bytes as they are: broadcast, all_gather, gather, scatter, all_to_all,
// and the barrier, which moves none.
//
// On one node each source stages its bytes and each destination copies them out: one meeting for a
// chunk. With several nodes the leaders of the lanes carry the bytes over in between:
//
//   broadcast    lane w carries share w of the chunk along the chain of nodes that begins at the
//                root's: every link carries every byte once, and chunks follow one another through
//                the chain; few chunks for many nodes, down a tree (cpu_calls/core/relay.h)
//   all_gather,  the leader of lane w carries the bytes of its node's ranks of that lane to every
//   gather       other node (gather: to the root's), into its colleague's stage
//   scatter      the leaders on the root's node carry from the root's stage what belongs to the
//                ranks of their lane on each other node
//   all_to_all   the leader of lane w carries what its node's ranks have for the ranks of that lane
//                on each other node
#pragma once

#include <span>
#include <vector>

#include "worker_lib/collective/core/scattered.h"
#include "worker_lib/cpu_calls/chunked_call.h"
#include "worker_lib/cpu_calls/core/chunk_plan.h"
#include "worker_lib/cpu_calls/core/relay.h"
#include "worker_lib/cpu_shm/core/pair_sizes.h"

namespace ddprun {

class BroadcastCall final : public ChunkedCall {
 public:
  BroadcastCall(const GroupTopology& here, Scattered<char> data, int root);

  std::size_t chunks() const override { return plan_.chunks(); }
  ChunkPipeline::Work work_mode() const override;
  void stage(const Chunk& chunk) override;
  std::vector<TcpMesh::Sending> sends_first(const Chunk& chunk) override;
  TcpMesh::End work(const Chunk& chunk, TimePoint deadline) override;
  void copy_out(const Chunk& chunk) override;

 private:
  // The way of the bytes between nodes, and where this one's lie.
  Relay relay() const;
  int node_at(int place) const;
  std::span<char> own_share(const Chunk& chunk) const;
  std::vector<TcpMesh::Sending> passes_on(const Chunk& chunk) const;

  const GroupTopology& here_;
  Scattered<char> data_;
  int root_;
  ChunkPlan plan_;
};

// all_gather (root -1) and gather.
class GatherCall final : public ChunkedCall {
 public:
  // outputs: by rank, where the result is wanted.
  GatherCall(const GroupTopology& here, Scattered<const char> input,
             std::span<const Scattered<char>> outputs, int root);

  std::size_t chunks() const override { return plan_.chunks(); }
  ChunkPipeline::Work work_mode() const override;
  void stage(const Chunk& chunk) override;
  std::vector<TcpMesh::Sending> sends_first(const Chunk& chunk) override;
  TcpMesh::End work(const Chunk& chunk, TimePoint deadline) override;
  void copy_out(const Chunk& chunk) override;

 private:
  bool wants_result() const { return root_ < 0 || root_ == here_.rank; }
  // visit(node) for the other nodes; visit(rank) for the ranks of a node that this lane's leader carries.
  template <class Visit>
  void for_each_other_node(Visit visit) const;
  template <class Visit>
  void for_each_of_lane(int node, Visit visit) const;
  // Where the bytes of a rank lie in this node's segment.
  const char* staged(int rank, const Chunk& chunk) const;
  // How many blocks of other ranks lie before this rank's in the stage of its lane's leader here.
  std::size_t place_of(int rank) const;

  const GroupTopology& here_;
  Scattered<const char> input_;
  std::span<const Scattered<char>> outputs_;
  int root_;
  ChunkPlan plan_;
};

class ScatterCall final : public ChunkedCall {
 public:
  ScatterCall(const GroupTopology& here, std::span<const ReadableBytes> inputs, WritableBytes output,
              int root);

  std::size_t chunks() const override { return plan_.chunks(); }
  ChunkPipeline::Work work_mode() const override;
  void stage(const Chunk& chunk) override;
  std::vector<TcpMesh::Sending> sends_first(const Chunk& chunk) override;
  TcpMesh::End work(const Chunk& chunk, TimePoint deadline) override;
  void copy_out(const Chunk& chunk) override;

 private:
  const GroupTopology& here_;
  std::span<const ReadableBytes> inputs_;
  WritableBytes output_;
  int root_;
  ChunkPlan plan_;
};

// Every rank has something for every other one; how much may differ from pair to pair.
class AllToAllCall final : public ChunkedCall {
 public:
  // inputs[r] goes to rank r, outputs[r] comes from there; `sizes` says the same of all pairs.
  AllToAllCall(const GroupTopology& here, const PairSizes& sizes,
               std::span<const ReadableBytes> inputs, std::span<const WritableBytes> outputs);

  std::size_t chunks() const override;
  ChunkPipeline::Work work_mode() const override;
  void stage(const Chunk& chunk) override;
  TcpMesh::End work(const Chunk& chunk, TimePoint deadline) override;
  void copy_out(const Chunk& chunk) override;

 private:
  Range part(int from, int to, const Chunk& chunk) const;
  // Where the part for a rank lies in the stage of the rank of this node that it comes from, and where
  // in the stage of its lane's leader if it comes from another node.
  char* outgoing(int from, int to, const Chunk& chunk) const;
  char* incoming(int from, int to, const Chunk& chunk) const;

  const GroupTopology& here_;
  const PairSizes& sizes_;
  std::span<const ReadableBytes> inputs_;
  std::span<const WritableBytes> outputs_;
  std::size_t slot_;  // bytes of a pair in a chunk at most
};

class BarrierCall final : public ChunkedCall {
 public:
  std::size_t chunks() const override { return 1; }
  ChunkPipeline::Work work_mode() const override { return ChunkPipeline::Work::kNone; }
  void stage(const Chunk&) override {}
  TcpMesh::End work(const Chunk&, TimePoint) override { return {}; }
  void copy_out(const Chunk&) override {}
};

}  // namespace ddprun
