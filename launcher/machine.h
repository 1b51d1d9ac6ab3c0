// What this machine has: for --nproc-per-node auto, cpu and gpu. Any thread.
#pragma once

#include "base/result.h"
#include "launcher/core/launch_options.h"

namespace ddprun {

// Workers of this node. CPUs are those that this process may run on, GPUs those that programs
// started from here would see. kUnsupported: gpu was asked for and there is none.
Result<int> count_slots(const SlotCount& wanted);

}  // namespace ddprun
