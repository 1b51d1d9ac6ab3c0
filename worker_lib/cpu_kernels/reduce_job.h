// ReduceJob: one all_reduce, reduce or reduce_scatter, whatever the algorithm.
//
// A view of the caller's memory, for one call, on the thread that makes it.
#pragma once

#include <cstddef>
#include <span>

#include "worker_lib/collective/call_header.h"
#include "worker_lib/collective/core/scattered.h"
#include "worker_lib/cpu_kernels/reduce_kernels.h"

namespace ddprun {

// all_reduce and reduce work on `data`, in place. reduce_scatter has `inputs`, one for each
// rank, and `output`.
struct ReduceJob {
  CallKind kind = CallKind::kAllReduce;
  ElementType type = ElementType::kF32;
  ReduceOp op = ReduceOp::kSum;
  int root = -1;
  Scattered<char> data;
  std::span<const Scattered<const char>> inputs;
  Scattered<char> output;

  // Returns the number of elements of the result.
  std::size_t count() const { return (by_rank() ? output : data).bytes() / size_of(type); }
  // Returns whether each rank gets its own block; otherwise all ranks, or the root, get the
  // whole.
  bool by_rank() const { return kind == CallKind::kReduceScatter; }
  // Returns the bytes that this rank gives and gets in a reduce_scatter.
  std::size_t bytes_by_rank() const { return output.bytes() * (inputs.size() + 1); }
  bool wants_result(int rank) const { return root < 0 || root == rank; }
  // Reduces `count` elements of each source into `out` and `copies`, with the fastest kernel that
  // this machine supports. Unless the result is partial, it is of all ranks of the world.
  void reduce(ReduceForm form, std::span<const void* const> sources, std::size_t count, void* out,
              int world_size, std::span<void* const> copies = {}) const;
};

}  // namespace ddprun
