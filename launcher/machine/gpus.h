// The GPUs of this machine, as NVML counts them. Any thread.
#pragma once

#include <vector>

#include "launcher/machine/core/visible_devices.h"

namespace ddprun {

// All that the driver shows to this process, by their place on the PCI bus; empty without a driver.
// The driver's library is opened for the call and let go again.
std::vector<PresentGpu> present_gpus();

// Those that programs started from here would see.
std::vector<VisibleGpu> visible_gpus_here();

}  // namespace ddprun
