// Control groups (v2) of a run: one for the run and, inside it, one for each worker.
//
// They can be created if ddprun's own group belongs to its user (root in a container of its own,
// systemd's delegation). ddprun works without them. They add two things:
//   - All processes of the job are killed at once, even if no process above them is left.
//   - Out-of-memory kills are counted for each worker, if the memory controller is delegated.
//
// The agent stays in the group that it was started in, because that group is not its own. These
// functions work on directories. Any thread.
#pragma once

#include <optional>
#include <string>

#include "base/ids.h"
#include "launcher/guard/run_directory.h"

namespace ddprun {

// Creates the run's group below the group of this process. nullopt: not possible.
std::optional<RunDirectory> make_run_cgroup();

// Creates a worker's group and returns its directory. A group left by an earlier generation is
// replaced. Empty: it cannot be created, or the run has no group.
std::string make_worker_cgroup(const std::string& run, LocalRank rank);

// Sends SIGKILL to every process in the group at the same instant (Linux 5.14). Does nothing for
// an empty name.
void kill_cgroup(const std::string& run);

// Kills the processes in the group, and removes it and its workers' groups. Waits up to 2 s
// while killed processes still exit. Returns whether the group is gone; true for an empty name.
bool remove_cgroup(const std::string& run);

// Return how many processes the kernel has killed because of a lack of memory: in this control
// group (v2) and below, or on this machine. 0 if there is no count.
long oom_kills_in(const std::string& cgroup);
long oom_kills_of_machine();

}  // namespace ddprun
