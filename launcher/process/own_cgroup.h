// Finds the control groups of this process. Reads /proc and /sys; any thread.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace ddprun {

// Finds this process's group in the text of /proc/self/cgroup: the path that follows
// "N:controllers:". controller: of version 1; empty: version 2. nullopt: there is no such
// hierarchy.
std::optional<std::string> cgroup_in(const std::string& text, std::string_view controller);

// Returns the directory of the control group of version 2. Empty: no hierarchy of version 2 is
// mounted in a usual place, or the group lies outside of what is visible here (a cgroup namespace).
std::string own_cgroup_directory();

// Returns a text such as "pids.max of the control group /x is 100", for the nearest group
// around this process that may have no further process. Empty: there is none.
std::string full_pids_cgroup();

}  // namespace ddprun
