// usable_cpus(): lists the CPUs that this process may run on, which may be fewer than the
// machine has. Any thread.
#pragma once

#include <vector>

namespace ddprun {

// Returns their numbers, ascending; at least one.
std::vector<int> usable_cpus();

}  // namespace ddprun
