#define DDPRUN_FOLD_NAMESPACE fold_avx512
#include "worker_lib/cpu/fold_kernels.inc"
