// The commands that talk to a running job: status, logs, stop, restart, signal and flight
// (docs/how-to/control.md).
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ddprun {

// Runs the command, whose name is that of a request, on the main thread. Returns the exit code; see
// RunCommand.
int run_control(std::string_view command, const std::vector<std::string>& arguments);

}  // namespace ddprun
