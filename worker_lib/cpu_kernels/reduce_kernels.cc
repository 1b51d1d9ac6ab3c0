#include "worker_lib/cpu_kernels/reduce_kernels.h"

#if defined(DDPRUN_REDUCE_X86)
#include <cpuid.h>
#endif

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

// Clang 14 does not know this feature by name.
static bool has_f16c() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}
#endif

InstructionSet best_instruction_set() {
#if defined(DDPRUN_REDUCE_X86)
  if (__builtin_cpu_supports("avx2") && has_f16c()) {
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
