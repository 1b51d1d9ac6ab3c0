// Turns `ddprun [options] program` into a plan for this host. Checks the options against each
// other and the machine, finds the program, and reads keys and certificates. Runs on the main
// thread before anything is started. Only make_log_directory() writes to disk.
#pragma once

#include <string>

#include "base/result.h"
#include "base/unique_fd.h"
#include "launcher/options/core/launch_options.h"
#include "launcher/plan/agent_config.h"
#include "launcher/plan/core/worker_plan.h"

namespace ddprun {

// Plans the job. The error names the option, program or file. It is kInvalidArgument if the
// command line cannot work on this host. Other errors concern keys or certificates.
Result<AgentConfig> plan_job(LaunchOptions options);

// Plans only the connection to the service, for commands that query a job.
Result<AgentConfig> plan_call(LaunchOptions options);

// Returns what connections to etcd need: null for http. The error names the file.
Result<TlsContextPtr> find_etcd_tls(const EtcdPlace& place);

// Returns the input for plan_workers(). log_directory: of the generation; empty: none.
PlanOptions plan_options(const AgentConfig& config, std::string log_directory);

// Creates the directory for this run's log and error files: below --log-dir, or a temporary one
// that is removed at the end. Creates nothing with --log-dir /dev/null. For a temporary
// directory it returns the lock (launcher/guard/run_directory.h), which the caller holds until
// the end. An error is one of the file system, not of the command line.
Result<UniqueFd> make_log_directory(AgentConfig& config);

}  // namespace ddprun
