// The collectives that only move bytes: broadcast, all_gather, gather, scatter and all_to_all.
// Also the barrier, which moves none.
//
// On one node each source stages its bytes and each destination copies them out: one
// synchronization per chunk. With several nodes the leaders of the lanes carry the bytes between
// nodes:
//
//   broadcast    Lane w carries share w of the chunk along the chain of nodes that begins at the
//                root's node. Every link carries every byte once; chunks follow one another through
//                the chain. Few chunks for many nodes go down a tree (cpu_calls/core/relay.h).
//   all_gather,  The leader of lane w sends the bytes of its node's ranks of that lane to every
//   gather       other node (gather: to the root's node), into the stage of that lane's leader
//                there.
//   scatter      The leaders on the root's node send, from the root's stage, the bytes for the
//                ranks of their lane on each other node.
//   all_to_all   The leader of lane w sends the bytes of its node's ranks for the ranks of that
//                lane on each other node.
#pragma once

#include <span>

#include "worker_lib/collective/core/scattered.h"
#include "worker_lib/cpu_calls/chunked_call.h"
#include "worker_lib/cpu_calls/core/chunk_plan.h"
#include "worker_lib/cpu_calls/core/relay.h"
#include "worker_lib/cpu_shm/core/pair_sizes.h"

namespace ddprun {

// CopyCall: the common part of the collectives that carry bytes. With several nodes the leaders of
// the lanes work.
class CopyCall : public ChunkedCall {
 public:
  std::size_t chunks() const override { return plan_.chunks(); }
  ChunkPipeline::Work work_mode() const override {
    return here_.one_node() ? ChunkPipeline::Work::kNone : ChunkPipeline::Work::kSome;
  }

 protected:
  // root: -1: there is none. bytes, chunk_limit: of what is cut into chunks.
  CopyCall(const GroupTopology& here, int root, std::size_t bytes, std::size_t chunk_limit)
      : ChunkedCall(here), root_(root), plan_(bytes, chunk_limit, kCacheLineBytes) {}

  const int root_;
  const ChunkPlan plan_;
};

class BroadcastCall final : public CopyCall {
 public:
  BroadcastCall(const GroupTopology& here, Scattered<char> data, int root);

  void stage(const Chunk& chunk) override;
  Sendings sends_first(const Chunk& chunk) override;
  TcpMesh::End work(const Chunk& chunk, TimePoint deadline) override;
  void copy_out(const Chunk& chunk) override;

 private:
  // Returns the route of the bytes between nodes, and the place of this node's bytes.
  Relay relay() const;
  int node_at(int place) const;
  std::span<char> own_share(const Chunk& chunk) const;
  Sendings passes_on(const Chunk& chunk) const;

  Scattered<char> data_;
};

// GatherCall: all_gather (root -1) and gather.
class GatherCall final : public CopyCall {
 public:
  // outputs: by rank, where this rank gets the result.
  GatherCall(const GroupTopology& here, Scattered<const char> input,
             std::span<const Scattered<char>> outputs, int root);

  void stage(const Chunk& chunk) override;
  Sendings sends_first(const Chunk& chunk) override;
  TcpMesh::End work(const Chunk& chunk, TimePoint deadline) override;
  void copy_out(const Chunk& chunk) override;

 private:
  bool wants_result() const { return root_ < 0 || root_ == here_.rank; }
  // Calls visit(rank) for the ranks of a node that this rank's lane carries.
  template <class Visit>
  void for_each_of_lane(int node, Visit visit) const;
  // Returns the place of a rank's bytes in this node's segment.
  const char* staged(int rank, const Chunk& chunk) const;
  // Returns how many blocks of other ranks lie before this rank's block in the stage of its
  // lane's leader on this node.
  std::size_t place_of(int rank) const;

  Scattered<const char> input_;
  std::span<const Scattered<char>> outputs_;
};

class ScatterCall final : public CopyCall {
 public:
  ScatterCall(const GroupTopology& here, ReadableList inputs, WritableBytes output, int root);

  void stage(const Chunk& chunk) override;
  Sendings sends_first(const Chunk& chunk) override;
  TcpMesh::End work(const Chunk& chunk, TimePoint deadline) override;
  void copy_out(const Chunk& chunk) override;

 private:
  ReadableList inputs_;
  WritableBytes output_;
};

// AllToAllCall: every rank has bytes for every other one; their number may differ from pair to
// pair.
class AllToAllCall final : public CopyCall {
 public:
  // inputs[r] goes to rank r, outputs[r] comes from rank r; `sizes` has the sizes of all pairs.
  AllToAllCall(const GroupTopology& here, const PairSizes& sizes, ReadableList inputs,
               WritableList outputs);

  void stage(const Chunk& chunk) override;
  TcpMesh::End work(const Chunk& chunk, TimePoint deadline) override;
  void copy_out(const Chunk& chunk) override;

 private:
  Range part(int from, int to, const Chunk& chunk) const;
  // Return the place of the bytes from `from` for `to`. outgoing(): in the stage of `from`, a
  // rank of this node. incoming(): in the stage of the leader of the lane of `to`, if `from` is
  // on another node.
  char* outgoing(int from, int to, const Chunk& chunk) const;
  char* incoming(int from, int to, const Chunk& chunk) const;

  const PairSizes& sizes_;
  ReadableList inputs_;
  WritableList outputs_;
  std::size_t slot_;  // bytes of one pair in a chunk, at most
};

class BarrierCall final : public ChunkedCall {
 public:
  using ChunkedCall::ChunkedCall;
  void stage(const Chunk&) override {}
  void copy_out(const Chunk&) override {}
};

}  // namespace ddprun
