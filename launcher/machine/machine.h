// What this machine has: for --nproc-per-node auto, cpu and gpu. Any thread.
#pragma once

#include "base/result.h"
#include "launcher/machine/core/slot_count.h"

namespace ddprun {

// Workers of this node. CPUs are those that this process may run on, GPUs those that programs
// started from here would see. kUnsupported: gpu was asked for and there is none.
Result<int> count_slots(const SlotCount& wanted);

// The cores of the CPUs that this process may run on: hardware threads of one core are one. As the
// kernel tells, without hwloc; where it does not tell, each CPU counts.
int count_cores();

}  // namespace ddprun
