// What `ddprun [options] program` comes to on this host: options checked against each other and
// against the machine, the program found, keys and certificates read. Main thread, before anything
// is started; nothing is left on disk but by make_log_directory().
#pragma once

#include <string>

#include "base/result.h"
#include "base/unique_fd.h"
#include "launcher/options/core/launch_options.h"
#include "launcher/plan/agent_config.h"
#include "launcher/plan/core/worker_plan.h"

namespace ddprun {

// The error names the option, program or file. kInvalidArgument: the command line
// cannot be meant here; else something is wrong with a file of keys or certificates.
Result<AgentConfig> plan_job(LaunchOptions options);

// The part of it that concerns the way to the service: for whoever only asks it something.
Result<AgentConfig> plan_call(LaunchOptions options);

// What the workers of a generation are planned from. log_directory: the generation's own; empty: none.
PlanOptions plan_options(const AgentConfig& config, std::string log_directory);

// Makes where this run's log and error files go: below --log-dir, or a directory that is removed at the
// end; what is returned is its lock then (launcher/guard/run_directory.h), to be held until the end. What is
// wrong is the disk, not the command line.
Result<UniqueFd> make_log_directory(AgentConfig& config);

}  // namespace ddprun
