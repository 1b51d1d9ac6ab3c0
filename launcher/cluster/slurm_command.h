// slurm_command(): a command of Slurm that does what its arguments say, whatever the user's
// variables are. Reads the environment; any thread.
#pragma once

#include <string>
#include <vector>

namespace ddprun {

// Returns the command without the variables of the user that select jobs or clusters for squeue,
// scancel and scontrol, such as SQUEUE_STATES: they could hide the job. Source: the manual pages of
// these commands, "ENVIRONMENT VARIABLES".
std::vector<std::string> slurm_command(const std::vector<std::string>& command);

}  // namespace ddprun
