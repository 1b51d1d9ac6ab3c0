// Finds the program of the command line and how to run it.
//
// Python runs *.py and -m. It is $PYTHON_EXEC, else the python of the environment in which
// ddprun is installed, else the one in PATH. All other programs are executed directly. A name
// with a slash is a path; a name without one is searched in PATH. Looks at the file system; any
// thread.
#pragma once

#include <optional>
#include <string>

#include "base/result.h"
#include "launcher/options/core/launch_options.h"
#include "launcher/plan/core/worker_plan.h"

namespace ddprun {

// Returns the command of every worker. Returns kInvalidArgument if the program is a launcher
// itself. Returns kNotFound with the program, the reason, and what to do.
Result<WorkerCommand> find_program(const LaunchOptions& options);

// Returns the interpreter for scripts and modules. Returns kNotFound as find_program() does.
// directory, here and below: where workers run; relative entries of PATH start there.
Result<std::string> find_python(const std::string& directory = "");

// Returns the path of an executable file of that name in PATH; nullopt: there is none.
std::optional<std::string> find_in_path(const std::string& name, const std::string& directory = "");

}  // namespace ddprun
