// Collectives over several nodes with so few bytes that these ride with the call headers: when a rank
// knows that all have called the same, it has what they gave, and needs nobody any more.
//
// That is one journey between nodes, where the longer ways take another one or two behind it. Every rank
// folds for itself, in the order of the longer way (the ranks of a node, then the nodes; or all ranks, where
// that is asked for), so that the bits are the same.
#pragma once

#include <span>

#include "worker_lib/collective/core/scattered.h"
#include "worker_lib/cpu_calls/chunked_call.h"
#include "worker_lib/cpu_kernels/reduce_job.h"

namespace ddprun {

class InlineCollective : public ChunkedCall {
 public:
  // bytes: of a rank's own.
  static bool suits(const GroupTopology& here, std::size_t bytes) {
    return !here.one_node() && bytes <= sizeof(Arrival::bytes);
  }

  std::size_t chunks() const override { return 1; }
  ChunkPipeline::Work work_mode() const override { return ChunkPipeline::Work::kNone; }
  bool is_inline() const override { return true; }
  TcpMesh::End work(const Chunk&, TimePoint) override { return {}; }

 protected:
  explicit InlineCollective(const GroupTopology& here) : here_(here) {}

  const GroupTopology& here_;
};

// all_reduce and reduce.
class InlineReduce final : public InlineCollective {
 public:
  InlineReduce(const GroupTopology& here, const ReduceJob& job) : InlineCollective(here), job_(job) {}

  void stage(const Chunk& chunk) override;
  void copy_out(const Chunk& chunk) override;

 private:
  void fold(ReduceForm form, std::span<const void* const> sources, char* out) const;
  void reduce_by_nodes(char* out) const;
  void reduce_by_ranks(char* out) const;

  const ReduceJob& job_;
};

class InlineBroadcast final : public InlineCollective {
 public:
  InlineBroadcast(const GroupTopology& here, Scattered<char> data, int root)
      : InlineCollective(here), data_(std::move(data)), root_(root) {}

  void stage(const Chunk& chunk) override;
  void copy_out(const Chunk& chunk) override;

 private:
  Scattered<char> data_;
  int root_;
};

// all_gather and gather.
class InlineGather final : public InlineCollective {
 public:
  // outputs: by rank; empty where the result is not wanted.
  InlineGather(const GroupTopology& here, Scattered<const char> input,
               std::span<const Scattered<char>> outputs)
      : InlineCollective(here), input_(std::move(input)), outputs_(outputs) {}

  void stage(const Chunk& chunk) override;
  void copy_out(const Chunk& chunk) override;

 private:
  Scattered<const char> input_;
  std::span<const Scattered<char>> outputs_;
};

}  // namespace ddprun
