// Applies --bind, --numa-binding and --gpu-visibility to this machine: chooses CPUs, threads
// and GPUs for the workers of a node. Called by main() before anything is started; any thread.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "launcher/machine/core/placement.h"
#include "launcher/options/core/launch_options.h"

namespace ddprun {

struct Binding {
  std::vector<Seat> seats;           // by local rank; without CPUs if workers are not bound
  std::string text;                  // one line that describes the binding; empty: not bound
  std::vector<std::string> remarks;  // facts that the user may not expect
};

// Places the workers. Without --bind and --numa-binding it only computes thread counts and does
// not use hwloc. The error names the option. It is kInvalidArgument as from place_workers(), or
// kUnsupported as from find_machine().
Result<Binding> bind_workers(const LaunchOptions& options, int workers);

// Returns the drawing for --show-binding, with or without a policy. Returns the errors of
// bind_workers(), plan_rendezvous() and count_slots().
Result<std::string> show_binding(const LaunchOptions& options);

// Returns CUDA_VISIBLE_DEVICES for each worker, with --gpu-visibility own or
// --virtual-local-rank. Empty: all workers inherit it. Returns kInvalidArgument if there are
// fewer GPUs than workers.
Result<std::vector<std::string>> own_devices(const LaunchOptions& options, int workers);

// Returns CUDA_VISIBLE_DEVICES as all workers get it if own_devices() is empty; nullopt: it is not
// set.
std::optional<std::string> shared_devices(const LaunchOptions& options);

}  // namespace ddprun
