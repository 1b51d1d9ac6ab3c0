// The commands that talk to a running job: status, logs, stop, restart, signal and flight
// (docs/how-to/control.md). Each runs on the main thread and returns the exit code; see
// Subcommand::run.
#pragma once

#include <string>
#include <vector>

namespace ddprun {

int run_status(const std::vector<std::string>& arguments);
int run_logs(const std::vector<std::string>& arguments);
int run_stop(const std::vector<std::string>& arguments);
int run_restart(const std::vector<std::string>& arguments);
int run_signal(const std::vector<std::string>& arguments);
int run_flight(const std::vector<std::string>& arguments);

}  // namespace ddprun
