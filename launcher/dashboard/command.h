// `ddprun dashboard`: serves the page of a running job on this host (docs/how-to/see-your-job.md).
//
// Called on the main thread.
#pragma once

#include <string>
#include <vector>

namespace ddprun {

// Runs the command with these arguments. Returns its exit code.
int run_dashboard(const std::vector<std::string>& arguments);

}  // namespace ddprun
