// What hwloc knows of this machine: its cores, NUMA nodes and caches, and which CPUs are nearest to
// its GPUs. Only for --bind and --show-binding: the scan takes tens of milliseconds.
//
// libhwloc.so.15 is loaded where it is and let go again, so that ddprun starts without it and where
// it is not installed. HWLOC_XMLFILE and HWLOC_SYNTHETIC, hwloc's own variables, name another
// machine than this one. Any thread, but hwloc reads the environment.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "launcher/machine/core/placement.h"
#include "launcher/machine/core/visible_devices.h"

namespace ddprun {

struct TopologyOptions {
  std::vector<VisibleGpu> gpus;            // whose place is wanted
  std::string library = "libhwloc.so.15";  // tests name one that does not exist
};

struct FoundMachine {
  Machine machine;
  // Not, where hwloc's variables name another one and HWLOC_THISSYSTEM does not say that it is this
  // one: then all of its CPUs count as usable.
  bool is_this_one = true;
};

// kUnsupported: hwloc is not there, or this ddprun was built without it; says what to install.
Result<FoundMachine> find_machine(const TopologyOptions& options);

}  // namespace ddprun
