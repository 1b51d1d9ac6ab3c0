// Memory, limits, cgroups, cores and clock of this host: facts for `ddprun doctor`. Looks at the
// file system and asks the kernel; nothing is changed and nothing left behind. Any thread.
#pragma once

#include <string>

#include "launcher/doctor/core/facts.h"

namespace ddprun {

SharedMemoryFacts look_at_shared_memory();
// TMPDIR, or /tmp.
Space look_at_temporary();
LimitFacts look_at_limits();
MachineFacts look_at_machine();
ClockFacts look_at_clock();
DebuggerFacts look_at_debuggers();

// The cgroup in which ddprun would make its own, and the narrowest limits around this process.
CgroupFacts look_at_cgroups();
// The limits alone, of either version. root: where the file system's root is; tests have one of their
// own.
CgroupFacts read_cgroup_limits(const std::string& root = "");

}  // namespace ddprun
