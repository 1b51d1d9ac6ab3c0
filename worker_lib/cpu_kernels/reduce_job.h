// ReduceJob: what one all_reduce, reduce or reduce_scatter has to do, however it is done.
//
// A view of the caller's memory, for one call, on the thread that makes it.
#pragma once

#include <cstddef>
#include <span>

#include "worker_lib/collective/call_header.h"
#include "worker_lib/collective/core/scattered.h"
#include "worker_lib/cpu_kernels/reduce_kernels.h"

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
  // Of a reduce_scatter: what this rank gives and gets.
  std::size_t bytes_by_rank() const { return output.bytes() * (inputs.size() + 1); }
  bool wants_result(int rank) const { return root < 0 || root == rank; }
  // The best there is for this machine.
  ReduceKernel kernel(ReduceForm form) const;
  // Of a fold over all ranks, at its end.
  double divisor(int world_size) const { return op == ReduceOp::kAvg ? world_size : 1; }
};

}  // namespace ddprun
