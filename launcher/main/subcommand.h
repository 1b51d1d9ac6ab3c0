// Maps the commands of ddprun (options/core/command_names.h) to their functions. Constant. Any
// thread.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace ddprun {

// Runs a command and returns its exit code. arguments: those that follow the command's name.
// Main thread only.
using RunCommand = std::function<int(const std::vector<std::string>& arguments)>;

// Returns the function that runs the command `name`, or null if there is no such command.
RunCommand find_command(std::string_view name);

}  // namespace ddprun
