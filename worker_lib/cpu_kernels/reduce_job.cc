#include "worker_lib/cpu_kernels/reduce_job.h"

namespace ddprun {

ReduceKernel ReduceJob::kernel(ReduceForm form) const {
  static const InstructionSet set = best_instruction_set();
  return reduce_kernel(type, op, form, set);
}

}  // namespace ddprun
