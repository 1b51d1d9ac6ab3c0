// torchrun, or ddprun itself, as the program that ddprun is to start: each worker would be a whole
// launcher with workers of its own. Nearly always that is a command line of torchrun with ddprun
// put in front of it. Pure; any thread.
#pragma once

#include <optional>
#include <string>

#include "launcher/options/core/launch_options.h"

namespace ddprun {

// What to type instead, as a sentence; nullopt: the program is no launcher. Who means it starts it
// through a shell, into which nobody looks.
std::optional<std::string> explain_nested_launcher(const LaunchOptions& options);

}  // namespace ddprun
