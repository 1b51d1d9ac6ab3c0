// The collectives that reduce: all_reduce, reduce, reduce_scatter.
//
// SharedReduce is for all but small messages. Each rank reduces its share:
//
//   stage     write the shares of the other ranks into the own stage (the own share is read in
//             place)
//   work      reduce the share over all ranks of the node, in the order of their ranks; write the
//             result to the own stage, where the share that was not staged belongs, and to the own
//             output
//   copy out  read the others' results from their stages
//
// So each byte passes through shared memory once as input and once as result. That is the
// minimum for private buffers. With several nodes, `work` continues between the leaders of a
// lane:
//
// - reduce the share over the node, into accumulators;
// - send each node its piece of them, and reduce the received pieces in the order of the nodes;
// - send the finished piece to every node that needs it.
//
// Each node sends (n-1)/n of the buffer, twice. That is as few bytes as in a ring, in two steps.
// Unlike in a ring, the order of the reduction is the same for every element.
//
// For few bytes, each node sends all of them to every other node that needs the result, and that
// node reduces all of them. This takes one step and has the same order.
//
// If the order must be that of the ranks for every layout, the first two steps of `work` differ:
//
// - send each node its piece of the input of every rank of the own node;
// - reduce the piece over all ranks, in their order.
//
// So the bits are the same as on one node. The first step sends as many times the bytes as a
// node has ranks.
//
// If the tensors of all ranks of the node lie in the segment's heap, nothing is staged. Each
// rank reads its share of all tensors in place and, on one node, also writes the result in
// place:
//
//   work      reduce the share from all ranks' tensors into all ranks' tensors
//
// That is the absolute minimum: each byte is read once and written once.
//
// DirectReduce, on one node: each rank stages what others need, and reduces all that it needs
// itself. A chunk takes one synchronization instead of two. It is as fast or faster for small
// messages and for two ranks, whose bytes cross once in both algorithms. The same is true for
// reduce_scatter, where no rank needs what another one reduces. The order is the same, and so
// are the bits.
#pragma once

#include <span>
#include <vector>

#include "worker_lib/cpu_calls/chunked_call.h"
#include "worker_lib/cpu_calls/core/chunk_plan.h"
#include "worker_lib/cpu_kernels/reduce_job.h"

namespace ddprun {

class DirectReduce final : public ChunkedCall {
 public:
  DirectReduce(const GroupTopology& here, const ReduceJob& job);

  // Returns whether DirectReduce is the faster algorithm.
  static bool suits(const GroupTopology& here, const ReduceJob& job);

  std::size_t chunks() const override { return plan_.chunks(); }
  void stage(const Chunk& chunk) override;
  void copy_out(const Chunk& chunk) override;

 private:
  void reduce_chunk(const Chunk& chunk, std::size_t from, const char* input, std::size_t bytes,
                    char* out);

  const ReduceJob& job_;
  std::size_t size_;  // bytes of an element
  ChunkPlan plan_;
};

// ReduceScratch: memory that SharedReduce needs with several nodes, kept from call to call.
struct ReduceScratch {
  std::vector<char> partial;  // this node's reduction of the share, as accumulators
  // Other nodes' reductions, or their ranks' inputs, of this node's piece.
  std::vector<char> inbox;
};

class SharedReduce final : public ChunkedCall {
 public:
  // tensors: for an all_reduce the tensors by local index, if all lie in the heap; otherwise
  // empty. They are read when every rank has arrived.
  SharedReduce(const GroupTopology& here, const ReduceJob& job, ReduceScratch& scratch,
               std::span<char* const> tensors = {});

  std::size_t chunks() const override { return plan_.chunks(); }
  ChunkPipeline::Work work_mode() const override { return ChunkPipeline::Work::kSome; }
  void stage(const Chunk& chunk) override;
  Sendings sends_first(const Chunk& chunk) override;
  TcpMesh::End work(const Chunk& chunk, TimePoint deadline) override;
  void copy_out(const Chunk& chunk) override;

 private:
  // Stretch: a part of the share that is contiguous in this rank's memory.
  struct Stretch {
    Range at;                     // within the chunk
    const char* input = nullptr;  // private
    char* output = nullptr;       // private; null: this rank does not get the result
  };

  bool in_heap() const { return !tensors_.empty(); }
  bool reduces_by_ranks() const;
  bool is_repeated() const;
  bool is_reduced_on(int node) const;
  ChunkShape shape(const Chunk& chunk) const;
  // Returns the contiguous parts of this rank's share, in the order of the chunk.
  std::vector<Stretch> own_share(const Chunk& chunk) const;
  void reduce_over_node(const Chunk& chunk, const Stretch& stretch, ReduceForm form, char* out,
                        std::span<void* const> copies);
  bool reduce_in_heap(const Chunk& chunk, const Stretch& stretch);
  TcpMesh::End reduce_by_nodes(const Chunk& chunk, std::span<const Stretch> share,
                               TimePoint deadline);
  TcpMesh::End reduce_by_ranks(const Chunk& chunk, std::span<const Stretch> share,
                               TimePoint deadline);
  template <class Visit>
  void for_each_input(const Chunk& chunk, std::span<const Stretch> share, int local, Range range,
                      Visit visit) const;
  const char* input_of(const Chunk& chunk, int local, std::size_t at) const;
  TcpMesh::End collect_inputs(const Chunk& chunk, TimePoint deadline);
  TcpMesh::End collect_pieces(const Chunk& chunk, TimePoint deadline);
  bool is_alone() const;
  template <class Visit>
  void for_each_result(const Chunk& chunk, std::span<const Stretch> share, Range range,
                       Visit visit) const;
  TcpMesh::End spread_pieces(const Chunk& chunk, std::span<const Stretch> share,
                             TimePoint deadline);
  void reduce_over_nodes(const Chunk& chunk, std::span<const Stretch> share);

  const ReduceJob& job_;
  ReduceScratch& scratch_;
  std::span<char* const> tensors_;
  std::size_t size_;              // bytes of an element
  std::size_t accumulator_size_;  // bytes of an element of a partial reduction
  ChunkPlan plan_;
};

}  // namespace ddprun
