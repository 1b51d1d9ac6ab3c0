// What the program on the command line is, and how it is run.
//
// *.py and -m go through python: $PYTHON_EXEC, that of the environment in which ddprun is installed,
// or that of PATH; every other program is executed. A name with a slash is a path; a
// bare one is looked up in PATH. Looks at the file system; any thread.
#pragma once

#include <optional>
#include <string>

#include "base/result.h"
#include "launcher/options/core/launch_options.h"
#include "launcher/plan/core/worker_plan.h"

namespace ddprun {

// The command of every worker. kInvalidArgument: it is a launcher itself. kNotFound names the program, what is wrong with it, and what would
// be right.
Result<WorkerCommand> find_program(const LaunchOptions& options);

// directory, here and below: where workers run; what is relative in PATH counts from there.
// The interpreter that scripts and modules go through. kNotFound as above.
Result<std::string> find_python(const std::string& directory = "");

// Where PATH has an executable file of that name; nullopt: nowhere.
std::optional<std::string> find_in_path(const std::string& name, const std::string& directory = "");

}  // namespace ddprun
