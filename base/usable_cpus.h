// The CPUs that this process may run on: the scheduler's share, not all there are. Any thread.
#pragma once

#include <vector>

namespace ddprun {

// Their numbers, ascending; at least one.
std::vector<int> usable_cpus();

}  // namespace ddprun
