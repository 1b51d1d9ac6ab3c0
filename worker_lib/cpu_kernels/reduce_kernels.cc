#include "worker_lib/cpu_kernels/reduce_kernels.h"

namespace ddprun {

namespace reduce_baseline {
ReduceKernel kernel(ElementType type, ReduceOp op, ReduceForm form);
}
#if defined(DDPRUN_REDUCE_X86)
namespace reduce_avx2 {
ReduceKernel kernel(ElementType type, ReduceOp op, ReduceForm form);
}
namespace reduce_avx512 {
ReduceKernel kernel(ElementType type, ReduceOp op, ReduceForm form);
}
#endif

InstructionSet best_instruction_set() {
#if defined(DDPRUN_REDUCE_X86)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c")) {
    return __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                   __builtin_cpu_supports("avx512vl")
               ? InstructionSet::kAvx512
               : InstructionSet::kAvx2;
  }
#endif
  return InstructionSet::kBaseline;
}

ReduceKernel reduce_kernel(ElementType type, ReduceOp op, ReduceForm form, InstructionSet set) {
  switch (set) {
    case InstructionSet::kBaseline: return reduce_baseline::kernel(type, op, form);
#if defined(DDPRUN_REDUCE_X86)
    case InstructionSet::kAvx2: return reduce_avx2::kernel(type, op, form);
    case InstructionSet::kAvx512: return reduce_avx512::kernel(type, op, form);
#else
    default: break;
#endif
  }
  return nullptr;
}

}  // namespace ddprun
