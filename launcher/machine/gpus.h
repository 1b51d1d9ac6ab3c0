// Lists the GPUs of this machine, as NVML counts them. Any thread.
#pragma once

#include <vector>

#include "launcher/machine/core/visible_devices.h"

namespace ddprun {

// Returns all GPUs that the driver shows to this process, in the order of the PCI bus. Empty
// without a driver. The driver's library is loaded for the call and unloaded again.
std::vector<PresentGpu> present_gpus();

// Returns the GPUs that programs started from here would see.
std::vector<VisibleGpu> visible_gpus_here();

}  // namespace ddprun
