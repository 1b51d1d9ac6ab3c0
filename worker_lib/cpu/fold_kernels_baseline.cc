#define DDPRUN_FOLD_NAMESPACE fold_baseline
#include "worker_lib/cpu/fold_kernels.inc"
