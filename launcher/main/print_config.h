// --print-config: the value of every option, and where it comes from. Pure; any thread.
#pragma once

#include <string>

#include "launcher/options/command_line.h"

namespace ddprun {

// A line for each option: its name, its value as it would be written, where it comes from.
std::string config_text(const CommandLine& line);

}  // namespace ddprun
