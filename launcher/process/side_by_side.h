// side_by_side(): runs functions that have to wait, all at the same time. Any thread.
#pragma once

#include <functional>
#include <vector>

namespace ddprun {

// Runs each body in a thread of its own, or in this thread if no thread can be started. Returns
// when all have ended. A body must not throw, and must not write where another one does.
void side_by_side(std::vector<std::function<void()>> bodies);

}  // namespace ddprun
