// Facts about memory, limits, cgroups, cores and clock of this host, for `ddprun doctor`. They
// come from the file system and the kernel. Changes nothing and leaves nothing behind. Any
// thread.
#pragma once

#include <string>

#include "launcher/doctor/core/facts.h"

namespace ddprun {

SharedMemoryFacts look_at_shared_memory();
// Looks at TMPDIR, or at /tmp.
Space look_at_temporary();
LimitFacts look_at_limits();
MachineFacts look_at_machine();
ClockFacts look_at_clock();
DebuggerFacts look_at_debuggers();

// Returns the cgroup in which ddprun would create its own, and the narrowest limits around this
// process.
CgroupFacts look_at_cgroups();
// Returns the limits only, of both cgroup versions. root: the root of the file system; tests use
// another.
CgroupFacts read_cgroup_limits(const std::string& root = "");

}  // namespace ddprun
