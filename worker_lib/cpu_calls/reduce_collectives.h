// The collectives that reduce: all_reduce, reduce, reduce_scatter.
//
// SharedReduce, for all but small messages. Each rank reduces its share:
//
//   stage     write the shares of the others into one's own stage (the own share is read where it
//             is)
//   work      fold the share of all ranks of the node, in the order of their ranks; the result
//             goes to the own stage, in the place of the share that was not staged, and to the own
//             output
//   copy out  read the others' results from their stages
//
// So each byte passes once through shared memory as input and once as result: the least there is
// when buffers are private. With several nodes, `work` goes on between the leaders of a lane:
//
//   - fold the share over the node, into accumulators;
//   - send each node its piece of them, and fold the pieces received in the order of the nodes;
//   - send the finished piece to every node that needs it.
//
// That is (n-1)/n of the buffer out of each node, twice: as few bytes as a ring, in two steps, and,
// unlike a ring's, the order of the fold is the same for every element.
//
// Of few bytes each node sends all to every other one that needs the result, which folds all of it: one
// step, and the same order.
//
// Where the order is to be that of the ranks, whatever the layout, `work` differs in its first two steps:
//
//   - send each node its piece of what every rank of the own node gives;
//   - fold the piece of all ranks, in their order.
//
// So the same bits come out as on one node, for as many times the bytes as a node has ranks in the first
// step.
//
// Where the tensors of all ranks of the node lie in the segment's heap, nothing is staged: each rank
// reads its share of all of them where they are, and, on one node, writes the result there, too:
//
//   work      fold the share from everybody's tensor into everybody's tensor
//
// which is the least there is at all: each byte is read once and written once.
//
// DirectReduce, on one node: each rank stages what others need, and folds all that it needs itself.
// One meeting for a chunk instead of two. It is as good or better for small messages, for two ranks
// (whose bytes cross once either way), and for reduce_scatter, where nobody needs what another one
// folds. The order is the same, and so are the bits.
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

  // Whether it is the faster one.
  static bool suits(const GroupTopology& here, const ReduceJob& job);

  std::size_t chunks() const override { return plan_.chunks(); }
  ChunkPipeline::Work work_mode() const override { return ChunkPipeline::Work::kNone; }
  void stage(const Chunk& chunk) override;
  TcpMesh::End work(const Chunk&, TimePoint) override { return {}; }
  void copy_out(const Chunk& chunk) override;

 private:
  void fold(const Chunk& chunk, std::size_t from, const char* input, std::size_t bytes, char* out);

  const GroupTopology& here_;
  const ReduceJob& job_;
  std::size_t size_;  // bytes of an element
  ChunkPlan plan_;
};

// Memory that SharedReduce needs with several nodes, kept from call to call.
struct ReduceScratch {
  std::vector<char> partial;  // this node's fold of the share, accumulators
  std::vector<char> inbox;    // other nodes' folds, or their ranks' inputs, of this node's piece
};

class SharedReduce final : public ChunkedCall {
 public:
  // tensors: an all_reduce's, by local index, if they all lie in the heap; else empty. They are looked
  // at when everyone has arrived.
  SharedReduce(const GroupTopology& here, const ReduceJob& job, ReduceScratch& scratch,
               std::span<char* const> tensors = {});

  std::size_t chunks() const override { return plan_.chunks(); }
  ChunkPipeline::Work work_mode() const override { return ChunkPipeline::Work::kSome; }
  void stage(const Chunk& chunk) override;
  std::vector<TcpMesh::Sending> sends_first(const Chunk& chunk) override;
  TcpMesh::End work(const Chunk& chunk, TimePoint deadline) override;
  void copy_out(const Chunk& chunk) override;

 private:
  // A part of the share that lies in one piece in this rank's memory.
  struct Stretch {
    Range at;                     // within the chunk
    const char* input = nullptr;  // private
    char* output = nullptr;       // private; null: the result is not for this rank
  };

  bool in_heap() const { return !tensors_.empty(); }
  bool reduces_by_ranks() const;
  bool is_repeated() const;
  bool is_reduced_on(int node) const;
  ChunkShape shape(const Chunk& chunk) const;
  // Each part of this rank's share that lies in one piece, in the order of the chunk.
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

  const GroupTopology& here_;
  const ReduceJob& job_;
  ReduceScratch& scratch_;
  std::span<char* const> tensors_;
  std::size_t size_;              // bytes of an element
  std::size_t accumulator_size_;  // of a partial fold
  ChunkPlan plan_;
};

}  // namespace ddprun
