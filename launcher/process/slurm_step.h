// Detects whether this process runs in a step of Slurm. Any thread.
#pragma once

#include <sys/types.h>

namespace ddprun {

// Returns the slurmstepd above this process, which signals all processes of its step at once.
// 0: there is none.
pid_t slurm_manager();

}  // namespace ddprun
