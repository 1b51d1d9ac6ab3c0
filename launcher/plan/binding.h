// What --bind, --numa-binding and --gpu-visibility mean on this machine: places, threads and GPUs for
// the workers of a node. For main(), before anything is started; any thread.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "launcher/machine/core/placement.h"
#include "launcher/options/core/launch_options.h"

namespace ddprun {

struct Binding {
  std::vector<Seat> seats;           // by local rank; none has CPUs where workers are not bound
  std::string told;                  // a line on what was bound; empty: nothing
  std::vector<std::string> remarks;  // what the user would not expect
};

// Without --bind and --numa-binding only threads are counted, and hwloc is not asked. The error names
// the option: kInvalidArgument as place_workers(), kUnsupported as find_machine().
Result<Binding> bind_workers(const LaunchOptions& options, int workers);

// --show-binding: the drawing of it, with or without a policy. The same errors, and count_slots().
Result<std::string> show_binding(const LaunchOptions& options);

// CUDA_VISIBLE_DEVICES of each worker, with --gpu-visibility own or --virtual-local-rank; empty: all
// workers inherit it. kInvalidArgument: there are fewer GPUs than workers.
Result<std::vector<std::string>> own_devices(const LaunchOptions& options, int workers);

}  // namespace ddprun
