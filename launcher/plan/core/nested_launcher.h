// Detects that the program to start is torchrun or ddprun itself. Each worker would then be a
// whole launcher with its own workers. The usual cause is a torchrun command line with ddprun
// put before it. Pure; any thread.
#pragma once

#include <optional>
#include <string>

#include "launcher/options/core/launch_options.h"

namespace ddprun {

// Returns a sentence that says what to type instead; nullopt: the program is not a launcher.
// Does not look into shell commands, so users who want a launcher can start it through a shell.
std::optional<std::string> explain_nested_launcher(const LaunchOptions& options);

}  // namespace ddprun
