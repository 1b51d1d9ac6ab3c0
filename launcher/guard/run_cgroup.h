// A control group (v2) for a run of ddprun and, in it, one for each worker, where they can be made:
// where the group that ddprun is in belongs to its user (root in a container of its own, systemd's
// delegation). Without one everything works the same; with one
//   - all processes of the job are killed at once, also where nobody is left above them;
//   - the kernel's count of out-of-memory kills is the worker's own, where the memory controller is
//     passed on to us.
// The agent itself stays where it is: what it would have to leave is not its own. Functions on
// directories; any thread.
#pragma once

#include <optional>
#include <string>

#include "base/ids.h"
#include "launcher/guard/run_directory.h"

namespace ddprun {

// Makes the run's below the group of this process. nullopt: none can be made.
std::optional<RunDirectory> make_run_cgroup();

// Makes the one of a worker, anew where an earlier generation has left it, and returns its directory;
// empty: there is none, or the run has none.
std::string make_worker_cgroup(const std::string& run, LocalRank rank);

// SIGKILL for every process in it, at the same instant (Linux 5.14). Nothing for an empty name.
void kill_cgroup(const std::string& run);

// Kills what is in it and removes it with those of the workers; waits for a moment where the killed
// are still on their way out. Returns whether it is gone; true for an empty name.
bool remove_cgroup(const std::string& run);

// How many processes the kernel has killed for want of memory: in this control group (of version 2,
// and below), on this machine. 0 where nobody counts.
long oom_kills_in(const std::string& cgroup);
long oom_kills_of_machine();

}  // namespace ddprun
