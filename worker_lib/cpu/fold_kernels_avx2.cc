#define DDPRUN_FOLD_NAMESPACE fold_avx2
#include "worker_lib/cpu/fold_kernels.inc"
