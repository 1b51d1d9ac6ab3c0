// Counts the CPUs and GPUs of this machine, for --nproc-per-node auto, cpu and gpu. Any thread.
#pragma once

#include "base/result.h"
#include "launcher/machine/core/slot_count.h"

namespace ddprun {

// Returns the number of workers of this node. CPUs are those that this process may run on. GPUs
// are those that programs started from here would see. kUnsupported: gpu was asked for and
// there is none.
Result<int> count_slots(const SlotCount& wanted);

// Returns the number of cores of the CPUs that this process may run on. The hardware threads of
// one core count as one. Reads the kernel's files, without hwloc. If the kernel does not say,
// each CPU counts.
int count_cores();

}  // namespace ddprun
