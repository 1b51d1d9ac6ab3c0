// The control group (v2) that this process is in. Looks at /proc and /sys; any thread.
#pragma once

#include <string>

namespace ddprun {

// Its directory; empty: no hierarchy of version 2 is mounted in a usual place, or it lies outside of
// what is visible here (a namespace of its own).
std::string own_cgroup_directory();

// "pids.max of the control group /x is 100": the nearest one around this process that may have no
// further process; empty: none.
std::string full_pids_cgroup();

}  // namespace ddprun
