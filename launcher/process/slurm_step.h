// Whether this process runs in a step of Slurm. Any thread.
#pragma once

#include <sys/types.h>

namespace ddprun {

// The slurmstepd above this process, which signals every process of its step at once; 0: there is
// none.
pid_t slurm_manager();

}  // namespace ddprun
