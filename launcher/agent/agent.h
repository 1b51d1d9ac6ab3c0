// The agent: what runs on each node of a job, below guardian and keeper.
//
// It owns one Supervisor and performs its actions: it starts and signals workers, hosts the
// generation's store when rank 0 lives here, passes output on, and talks to the rendezvous service,
// which it may embed. Everything happens on one thread and one io_context; what may block has threads
// of its own: the console, log files, calls on a slow disk, looking at workers that hang.
#pragma once

#include "launcher/guard/guardian.h"
#include "launcher/plan/agent_config.h"

namespace ddprun {

// Runs the job's part on this node to its end and returns ddprun's exit code. Takes over the
// process: `signals` and SIGCHLD must be blocked and stay so, the descriptor limit is raised. What
// this machine refuses in an unexpected place (memory, threads, descriptors) becomes a line on
// stderr and ExitCode::kInternal; a thread may then be left that writes to a reader who has
// stopped, so the process should end soon.
int run_agent(const AgentConfig& config, Guards guards);

}  // namespace ddprun
