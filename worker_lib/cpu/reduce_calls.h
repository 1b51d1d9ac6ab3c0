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

#include "worker_lib/core/chunk_plan.h"
#include "worker_lib/core/scattered.h"
#include "worker_lib/cpu/call_header.h"
#include "worker_lib/cpu/chunked_call.h"
#include "worker_lib/cpu/fold_kernels.h"

namespace ddprun {

// What is to be reduced. all_reduce and reduce: `data`, in place. reduce_scatter: `inputs`, one for
// each rank, and `output`.
struct ReduceJob {
  CallKind kind = CallKind::kAllReduce;
  ElementType type = ElementType::kF32;
  ReduceOp op = ReduceOp::kSum;
  int root = -1;
  Scattered<char> data;
  std::span<const Scattered<const char>> inputs;
  Scattered<char> output;

  // Elements of the result.
  std::size_t count() const { return (by_rank() ? output : data).bytes() / size_of(type); }
  // Whether each rank gets a block of its own, and not all (or the root) the whole.
  bool by_rank() const { return kind == CallKind::kReduceScatter; }
  bool wants_result(int rank) const { return root < 0 || root == rank; }
};

class DirectReduce final : public ChunkedCall {
 public:
  DirectReduce(const Surroundings& here, const ReduceJob& job);

  // Whether it is the faster one.
  static bool suits(const Surroundings& here, const ReduceJob& job);

  std::size_t chunks() const override { return plan_.chunks(); }
  ChunkPipeline::Work work_mode() const override { return ChunkPipeline::Work::kNone; }
  void stage(const Chunk& chunk) override;
  TcpMesh::End work(const Chunk&, TimePoint) override { return {}; }
  void copy_out(const Chunk& chunk) override;

 private:
  const Surroundings& here_;
  const ReduceJob& job_;
  std::size_t size_;  // bytes of an element
  ChunkPlan plan_;
};

// Memory that SharedReduce needs with several nodes, kept from call to call.
struct ReduceScratch {
  std::vector<char> partial;  // this node's fold of the share, accumulators
  std::vector<char> inbox;    // other nodes' folds of this node's piece
};

class SharedReduce final : public ChunkedCall {
 public:
  // tensors: an all_reduce's, by local index, if they all lie in the heap; else empty. They are looked
  // at when everyone has arrived.
  SharedReduce(const Surroundings& here, const ReduceJob& job, ReduceScratch& scratch,
               std::span<char* const> tensors = {});

  std::size_t chunks() const override { return plan_.chunks(); }
  ChunkPipeline::Work work_mode() const override { return ChunkPipeline::Work::kSome; }
  void stage(const Chunk& chunk) override;
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
  ChunkShape shape(const Chunk& chunk) const;
  // Each part of this rank's share that lies in one piece, in the order of the chunk.
  std::vector<Stretch> own_share(const Chunk& chunk) const;
  void fold_over_node(const Chunk& chunk, const Stretch& stretch, FoldForm form, char* out,
                      std::span<void* const> copies);
  void fold_in_heap(const Chunk& chunk, const Stretch& stretch);
  TcpMesh::End collect_pieces(const Chunk& chunk, TimePoint deadline);
  TcpMesh::End spread_pieces(const Chunk& chunk, TimePoint deadline);
  void fold_over_nodes(const Chunk& chunk);

  const Surroundings& here_;
  const ReduceJob& job_;
  ReduceScratch& scratch_;
  std::span<char* const> tensors_;
  std::size_t size_;              // bytes of an element
  std::size_t accumulator_size_;  // of a partial fold
  ChunkPlan plan_;
};

}  // namespace ddprun
