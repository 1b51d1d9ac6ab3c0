// The agent: the process that does the work of a job on one node. Keeper and guardian stand
// above it.
//
// It owns one Supervisor and performs its actions: it starts and signals workers, and it passes
// their output on. It hosts the generation's store if rank 0 runs on this node. It talks to the
// rendezvous service, which it may embed.
//
// The agent runs on one thread and one io_context. Work that may block runs on other threads:
// console output, log files, calls on a slow disk, inspecting workers that hang.
#pragma once

#include "launcher/guard/guardian.h"
#include "launcher/plan/agent_config.h"

namespace ddprun {

// Runs the job's part on this node to its end and returns ddprun's exit code.
//
// Takes over the process: `signals` and SIGCHLD must be blocked and stay blocked; the descriptor
// limit is raised. An unexpected refusal of the system (memory, threads, descriptors) becomes a
// line on stderr and ExitCode::kInternal. A thread may then still run that writes to a reader
// that has stopped, so the process should end soon.
int run_agent(const AgentConfig& config, Guards guards);

}  // namespace ddprun
