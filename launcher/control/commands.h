// The commands that talk to a running job: status, logs, stop, restart, signal and flight
// (docs/how-to/control.md).
#pragma once

#include <string>
#include <vector>

#include "launcher/control/options.h"

namespace ddprun {

// Runs the command, neither top nor dashboard, on the main thread. Returns the exit code; see
// RunCommand.
int run_control(ControlCommand command, const std::vector<std::string>& arguments);

}  // namespace ddprun
