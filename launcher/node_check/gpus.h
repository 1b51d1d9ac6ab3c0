// Checks the GPUs of this node: their memory, and a computation whose result is known.
//
// The CUDA driver is loaded in a process of its own. So the agent has no CUDA context, and a driver
// that hangs or crashes does it no harm.
#pragma once

#include <string>
#include <vector>

#include "base/clock.h"
#include "base/gpu_speeds.h"

namespace ddprun {

// The hidden command of ddprun that checks GPUs. Its arguments: how many GPUs, the limit in bytes
// each second, and, if only one of them is checked, its number from 0. With the limit 0 it also
// prints the speeds, for which it times larger products.
inline constexpr const char* kGpuCheckCommand = "node-check-gpus";

// How long check_gpus() waits. The first use of a GPU may take seconds, in which the driver starts
// it.
struct GpuPatience {
  Duration first = std::chrono::seconds(30);   // for the check of all GPUs
  Duration second = std::chrono::seconds(30);  // for that of GPUs without a result
};

struct GpuPlan {
  std::string ddprun;  // the program
  int gpus = 1;        // the most that are checked, from the first visible one
  double limit = 0;    // bytes copied each second within a GPU, at least; 0: speeds are measured
  GpuPatience patience = {};
  int stop = -1;  // a descriptor. Once it is readable, the check ends at once. -1: none
};

// Checks the GPUs in another process. Returns what is wrong: "gpu 1 (0000:3b:00.0): ...". Empty:
// the GPUs are fit, or the node has none. If the driver crashes, or gives no result within
// `patience.first`, each GPU without a result is checked in a process of its own. So only GPUs that
// have crashed or held up their own process are named. Blocks; any thread.
std::string check_gpus(const GpuPlan& plan);

// Measures all visible GPUs, as check_gpus() checks them. ddprun: the program. Blocks; any thread.
GpuSpeeds measure_gpus(const std::string& ddprun);

// Runs kGpuCheckCommand: prints a GpuReport to stdout. Ends the process with 0, or with 2 if the
// arguments are wrong, without running the driver's own end.
[[noreturn]] void run_gpu_check(const std::vector<std::string>& arguments);

}  // namespace ddprun
