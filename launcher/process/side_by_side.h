// side_by_side(): what waits for others, at the same time. Any thread.
#pragma once

#include <functional>
#include <vector>

namespace ddprun {

// Runs each of these, which must not throw and each write to a place of its own, on a thread of its
// own where one can be started, and comes back when all have ended.
void side_by_side(std::vector<std::function<void()>> bodies);

}  // namespace ddprun
