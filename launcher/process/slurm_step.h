// Detects whether this process runs in a step of Slurm. Any thread.
#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>

namespace ddprun {

// Returns the slurmstepd above this process. 0: there is none.
pid_t slurm_manager();

// Returns the title of the slurmstepd above this process: "slurmstepd: [812.batch]". Empty: there
// is none.
std::string title_of_slurm_manager();

// Returns whether slurmstepd signals all processes of its step, or only those that it started.
// With proctrack/cgroup each step has a control group, and only the latter get signals, except
// SIGKILL. Source: Slurm, proctrack_cgroup.c, proctrack_p_signal(). cgroups: as /proc/self/cgroup
// has them.
bool signals_whole_step(std::string_view cgroups);

}  // namespace ddprun
