#define DDPRUN_FOLD_NAMESPACE fold_avx512
#include "worker_lib/cpu_kernels/reduce_kernels.inc"
