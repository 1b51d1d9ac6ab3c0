// Threads beside the one that the program or its event loop runs on: they take no signals, which
// are for the others to handle, and carry a name. Any thread.
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
