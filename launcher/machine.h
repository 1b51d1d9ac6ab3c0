// What this machine has: for --nproc-per-node auto, cpu and gpu. Any thread.
#pragma once

#include "base/result.h"
#include "launcher/core/launch_options.h"

namespace ddprun {

// CPUs that this process may run on: the scheduler's share, not all there are.
int count_cpus();

// GPUs that programs started from here would see: NVML's, as far as CUDA_VISIBLE_DEVICES lets them.
// 0 without a driver.
int count_gpus();

// Workers of this node. kUnsupported: gpu was asked for and there is none.
Result<int> count_slots(const SlotCount& wanted);

}  // namespace ddprun
