// Finds the rank that a worker's error message blames. Pure; any thread.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/ids.h"

namespace ddprun {

// Returns the rank that the message names as closed, dead or gone. If the message names none,
// looks at the last of these lines of stderr. The worker that reports this is a victim of that
// rank. nullopt: no rank or more than one.
std::optional<Rank> blamed_rank(const std::string& message,
                                const std::vector<std::string>& stderr_tail);

}  // namespace ddprun
