#define DDPRUN_FOLD_NAMESPACE fold_baseline
#include "worker_lib/cpu_kernels/reduce_kernels.inc"
