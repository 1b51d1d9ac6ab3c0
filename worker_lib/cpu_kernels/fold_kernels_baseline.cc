#define DDPRUN_FOLD_NAMESPACE fold_baseline
#include "worker_lib/cpu_kernels/fold_kernels.inc"
