#define DDPRUN_REDUCE_NAMESPACE reduce_avx512
#include "worker_lib/cpu_kernels/reduce_kernels.inc"
