// Reads this machine's topology with hwloc: its cores, NUMA nodes and caches, and which CPUs
// are nearest to its GPUs. Only for --bind and --show-binding: the scan takes tens of
// milliseconds.
//
// libhwloc.so.15 is loaded if it is installed, and unloaded after the scan. ddprun therefore
// starts without it. If hwloc's own variables HWLOC_XMLFILE or HWLOC_SYNTHETIC are set, the
// result describes another machine than this one. Any thread, but hwloc reads the environment.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "launcher/machine/core/placement.h"
#include "launcher/machine/core/visible_devices.h"

namespace ddprun {

struct TopologyOptions {
  std::vector<VisibleGpu> gpus;            // GPUs whose place is wanted
  std::string library = "libhwloc.so.15";  // tests use one that does not exist
};

struct FoundMachine {
  Machine machine;
  // False where hwloc's variables name another machine, and HWLOC_THISSYSTEM does not say that
  // it is this one. All of its CPUs then count as usable.
  bool is_this_one = true;
};

// Scans the machine. kUnsupported: hwloc is not installed, or this ddprun was built without it.
// The error says what to install.
Result<FoundMachine> find_machine(const TopologyOptions& options);

}  // namespace ddprun
