#define DDPRUN_REDUCE_NAMESPACE reduce_baseline
#include "worker_lib/cpu_kernels/reduce_kernels.inc"
