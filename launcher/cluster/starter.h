// Starts one ddprun on each node of a job by the command of the scheduler: srun, or blaunch of LSF.
//
// srun ends its tasks with SIGKILL if it gets a SIGTERM itself. So this process stands between: it
// passes signals on to the tasks, through scancel. Seen with Slurm 22.05. blaunch gets the
// signals itself.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "launcher/cluster/core/cluster_plan.h"

namespace ddprun {

// Returns the whole command. arguments: those of this ddprun.
std::vector<std::string> starter_command(const ClusterPlan& plan,
                                         const std::vector<std::string>& arguments);

// Runs the command until it ends, and returns its exit code. Each signal of `signals` goes to the
// ddpruns of all nodes; a second SIGINT ends them at once. The command ends with this process. It
// gets standard input only if passes_stdin, and never a terminal. kSystem: it cannot be started.
//
// Takes `signals` and SIGCHLD from this process. One call per process, while it has one thread.
Result<int> run_starter(const ClusterPlan& plan, const std::vector<std::string>& command,
                        const std::vector<int>& signals, bool passes_stdin);

}  // namespace ddprun
