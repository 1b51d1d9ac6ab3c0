#include "worker_lib/cpu_kernels/reduce_job.h"

namespace ddprun {

void ReduceJob::reduce(ReduceForm form, std::span<const void* const> sources, std::size_t count,
                       void* out, int world_size, std::span<void* const> copies) const {
  static const InstructionSet set = best_instruction_set();
  const bool divides = op == ReduceOp::kAvg && form != ReduceForm::kPartial;
  reduce_kernel(type, op, form, set)({.sources = sources.data(),
                                      .source_count = static_cast<int>(sources.size()),
                                      .count = count,
                                      .out = out,
                                      .copies = copies.data(),
                                      .copy_count = static_cast<int>(copies.size()),
                                      .divisor = divides ? world_size : 1.0});
}

}  // namespace ddprun
