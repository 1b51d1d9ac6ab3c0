// Starts one ddprun on each node of a job, through the scheduler's own command (srun).
//
// srun ends its tasks with SIGKILL if it gets a SIGTERM itself. So this process stands between: it
// passes signals on to the tasks, through scancel. Seen with Slurm 22.05.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "launcher/cluster/core/cluster_plan.h"

namespace ddprun {

// Returns the whole command. arguments: those of this ddprun. takes_options: the ddpruns get
// plan.starter_options, too, because the user gave none of them.
std::vector<std::string> starter_command(const ClusterPlan& plan,
                                         const std::vector<std::string>& arguments,
                                         bool takes_options);

// Runs the command until it ends, and returns its exit code. The first signal of `signals` goes to
// the ddpruns of all nodes. Any later one ends them at once. The command ends with this process. It
// gets no terminal as its standard input. kNotFound: there is no such command.
//
// Takes `signals` and SIGCHLD from this process. One call per process, while it has one thread.
Result<int> run_starter(const ClusterPlan& plan, const std::vector<std::string>& command,
                        const std::vector<int>& signals);

}  // namespace ddprun
