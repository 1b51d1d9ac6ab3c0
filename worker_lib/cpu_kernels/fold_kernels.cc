#include "worker_lib/cpu_kernels/fold_kernels.h"

namespace ddprun {

namespace fold_baseline {
FoldKernel kernel(ElementType type, ReduceOp op, FoldForm form);
}
#if defined(DDPRUN_FOLD_X86)
namespace fold_avx2 {
FoldKernel kernel(ElementType type, ReduceOp op, FoldForm form);
}
namespace fold_avx512 {
FoldKernel kernel(ElementType type, ReduceOp op, FoldForm form);
}
#endif

InstructionSet best_instruction_set() {
#if defined(DDPRUN_FOLD_X86)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c")) {
    return __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                   __builtin_cpu_supports("avx512vl")
               ? InstructionSet::kAvx512
               : InstructionSet::kAvx2;
  }
#endif
  return InstructionSet::kBaseline;
}

FoldKernel fold_kernel(ElementType type, ReduceOp op, FoldForm form, InstructionSet set) {
  switch (set) {
    case InstructionSet::kBaseline: return fold_baseline::kernel(type, op, form);
#if defined(DDPRUN_FOLD_X86)
    case InstructionSet::kAvx2: return fold_avx2::kernel(type, op, form);
    case InstructionSet::kAvx512: return fold_avx512::kernel(type, op, form);
#else
    default: break;
#endif
  }
  return nullptr;
}

}  // namespace ddprun
