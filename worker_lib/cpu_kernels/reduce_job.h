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
  // Returns the fastest kernel that this machine supports.
  ReduceKernel kernel(ReduceForm form) const;
  // Returns the divisor at the end of a reduction over all ranks.
  double divisor(int world_size) const { return op == ReduceOp::kAvg ? world_size : 1; }
};

}  // namespace ddprun
