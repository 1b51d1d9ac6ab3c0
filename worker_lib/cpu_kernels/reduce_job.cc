#include "worker_lib/cpu_kernels/reduce_job.h"

namespace ddprun {

FoldKernel ReduceJob::kernel(FoldForm form) const {
  static const InstructionSet set = best_instruction_set();
  return fold_kernel(type, op, form, set);
}

}  // namespace ddprun
