// What runs a command of ddprun (options/core/command_names.h). Constant; any thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ddprun {

// arguments: behind the name. Returns the exit code. For the main thread.
using RunCommand = int (*)(const std::vector<std::string>& arguments);

// Returns what runs the command of this name; null: there is none.
RunCommand find_command(std::string_view name);

}  // namespace ddprun
