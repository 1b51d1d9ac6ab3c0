// The commands that talk to a running job: status, logs, stop, restart, signal and flight
// (docs/how-to/control.md).
#pragma once

#include <string>
#include <vector>

#include "rendezvous/protocol/core/user_request.h"

namespace ddprun {

// Runs the command whose name is that of `what`, on the main thread, and returns the exit code;
// see RunCommand.
int run_control(UserRequest::What what, const std::vector<std::string>& arguments);

}  // namespace ddprun
