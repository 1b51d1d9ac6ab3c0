// Threads of the worker library: they take none of the program's signals and carry a name.
#pragma once

#include <functional>
#include <string>
#include <thread>

#include "base/result.h"

namespace ddprun {

// Starts `body`, which must not throw, as `thread`. name: at most 15 characters, shown by
// debuggers.
Result<void> start_thread(std::thread& thread, const std::string& name, std::function<void()> body);

}  // namespace ddprun
