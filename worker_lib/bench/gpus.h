// measure_gpus(): the speeds of the GPUs of this node.
#pragma once

#include <string>

#include "base/clock.h"
#include "base/gpu_speeds.h"

namespace ddprun {

// How long measure_gpus() takes at most. ddprun gives up GPUs that hang after 60 s.
inline constexpr Duration kGpuPatience = std::chrono::seconds(75);

// Runs kGpuSpeedsCommand of the ddprun in the folder of this program. So no CUDA driver is loaded
// here. If it gives no result, `fault` says so. Blocks; any thread.
GpuSpeeds measure_gpus();

}  // namespace ddprun
