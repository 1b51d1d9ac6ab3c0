#define DDPRUN_FOLD_NAMESPACE fold_avx512
#include "worker_lib/cpu_kernels/fold_kernels.inc"
