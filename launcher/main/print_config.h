// --print-config: prints the value of every option and its source. Pure. Any thread.
#pragma once

#include <string>

#include "launcher/options/command_line.h"

namespace ddprun {

// Returns one line for each option: its name, its value as a user would write it, and its
// source. Options that only the command line takes are left out. The last line is the program.
std::string format_config(const CommandLine& line);

}  // namespace ddprun
