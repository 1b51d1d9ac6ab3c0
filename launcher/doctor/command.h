// `ddprun doctor [options] [program]`: looks for causes of hanging or slow jobs on this host and on
// its network. Says what to do about each one. See docs/how-to/doctor.md. For the program's main
// thread.
#pragma once

#include <string>
#include <vector>

namespace ddprun {

// Runs the command. arguments: those after `doctor`. Returns the exit code of main(): 0;
// ExitCode::kUnwell if there is a problem; kUsage if the arguments are invalid. If keys or
// certificates cannot be read, see usage_or().
int run_doctor(const std::vector<std::string>& arguments);

}  // namespace ddprun
