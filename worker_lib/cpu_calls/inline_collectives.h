// InlineCollective: collectives over several nodes with so few bytes that these travel with the
// call headers. When a rank knows that all have made the same call, it also has their bytes, and
// needs no other rank any more.
//
// That is one network step; the other algorithms need one or two more. Every rank reduces for
// itself, in the order of those algorithms, so the bits are the same. The order is: the ranks of a
// node first, then the nodes; or all ranks in order, if that is required.
#pragma once

#include <span>

#include "worker_lib/collective/core/scattered.h"
#include "worker_lib/cpu_calls/chunked_call.h"
#include "worker_lib/cpu_kernels/reduce_job.h"

namespace ddprun {

class InlineCollective : public ChunkedCall {
 public:
  // bytes: of one rank.
  static bool suits(const GroupTopology& here, std::size_t bytes) {
    return !here.one_node() && bytes <= sizeof(Arrival::bytes);
  }

  using ChunkedCall::ChunkedCall;
  bool is_inline() const override { return true; }
};

// InlineReduce: all_reduce and reduce.
class InlineReduce final : public InlineCollective {
 public:
  InlineReduce(const GroupTopology& here, const ReduceJob& job)
      : InlineCollective(here), job_(job) {}

  void stage(const Chunk& chunk) override;
  void copy_out(const Chunk& chunk) override;

 private:
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

// InlineGather: all_gather and gather.
class InlineGather final : public InlineCollective {
 public:
  // outputs: by rank; empty if this rank does not get the result.
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
