// What the last words of a worker say about others. Pure; any thread.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/ids.h"

namespace ddprun {

// The rank that an error message, or the last of these lines of stderr, names as closed, dead or gone:
// whoever says so is its victim. nullopt: none, or more than one.
std::optional<Rank> blamed_rank(const std::string& message,
                                const std::vector<std::string>& stderr_tail);

}  // namespace ddprun
