// `ddprun top`: shows the ranks of a running job (docs/how-to/see-your-job.md).
#pragma once

#include <string>
#include <vector>

namespace ddprun {

// Runs the command on the main thread. Returns the exit code; see RunCommand. On a terminal it
// shows the job until the user ends it. Elsewhere it prints a table.
int run_top(const std::vector<std::string>& arguments);

}  // namespace ddprun
