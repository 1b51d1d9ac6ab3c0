// The collectives that move bytes as they are: broadcast, all_gather, gather, scatter, and the
// barrier, which moves none.
//
// On one node each source stages its bytes and each destination copies them out: one meeting for a
// chunk. With several nodes the leaders of the lanes carry the bytes over in between:
//
//   broadcast    lane w carries share w of the chunk along the chain of nodes that begins at the
//                root's: every link carries every byte once, and chunks follow one another through
//                the chain
//   all_gather,  the leader of lane w carries the bytes of its node's ranks of that lane to every
//   gather       other node (gather: to the root's), into its colleague's stage
//   scatter      the leaders on the root's node carry from the root's stage what belongs to the
//                ranks of their lane on each other node
#pragma once

#include <span>

#include "worker_lib/core/chunk_plan.h"
#include "worker_lib/cpu/chunked_call.h"

namespace ddprun {

class BroadcastCall final : public ChunkedCall {
 public:
  BroadcastCall(const Surroundings& here, char* data, std::size_t bytes, int root);

  std::size_t chunks() const override { return plan_.chunks(); }
  ChunkPipeline::Work work_mode() const override;
  void stage(const Chunk& chunk) override;
  TcpMesh::End work(const Chunk& chunk, TimePoint deadline) override;
  void copy_out(const Chunk& chunk) override;

 private:
  const Surroundings& here_;
  char* data_;
  int root_;
  ChunkPlan plan_;
};

// all_gather (root -1) and gather.
class GatherCall final : public ChunkedCall {
 public:
  GatherCall(const Surroundings& here, const char* input, std::span<void* const> outputs,
             std::size_t bytes, int root);

  std::size_t chunks() const override { return plan_.chunks(); }
  ChunkPipeline::Work work_mode() const override;
  void stage(const Chunk& chunk) override;
  TcpMesh::End work(const Chunk& chunk, TimePoint deadline) override;
  void copy_out(const Chunk& chunk) override;

 private:
  bool wants_result() const { return root_ < 0 || root_ == here_.rank; }
  // Where the bytes of a rank lie in this node's segment.
  const char* staged(int rank, const Chunk& chunk) const;
  // How many blocks of other ranks lie before this rank's in the stage of its lane's leader here.
  std::size_t place_of(int rank) const;

  const Surroundings& here_;
  const char* input_;
  std::span<void* const> outputs_;
  int root_;
  ChunkPlan plan_;
};

class ScatterCall final : public ChunkedCall {
 public:
  ScatterCall(const Surroundings& here, std::span<const void* const> inputs, char* output,
              std::size_t bytes, int root);

  std::size_t chunks() const override { return plan_.chunks(); }
  ChunkPipeline::Work work_mode() const override;
  void stage(const Chunk& chunk) override;
  TcpMesh::End work(const Chunk& chunk, TimePoint deadline) override;
  void copy_out(const Chunk& chunk) override;

 private:
  const Surroundings& here_;
  std::span<const void* const> inputs_;
  char* output_;
  int root_;
  ChunkPlan plan_;
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
