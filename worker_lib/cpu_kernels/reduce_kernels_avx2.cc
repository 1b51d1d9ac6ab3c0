#define DDPRUN_REDUCE_NAMESPACE reduce_avx2
#include "worker_lib/cpu_kernels/reduce_kernels.inc"
