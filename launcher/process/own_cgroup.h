// Finds the control group (v2) of this process. Reads /proc and /sys; any thread.
#pragma once

#include <string>

namespace ddprun {

// Returns the directory of the control group. Empty: no hierarchy of version 2 is mounted in a
// usual place, or the group lies outside of what is visible here (a cgroup namespace).
std::string own_cgroup_directory();

// Returns a text such as "pids.max of the control group /x is 100", for the nearest group
// around this process that may have no further process. Empty: there is none.
std::string full_pids_cgroup();

}  // namespace ddprun
