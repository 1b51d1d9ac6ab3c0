// Signals by name, for people. Pure; any thread.
#pragma once

#include <string>

namespace ddprun {

// "SIGKILL" for 9; "signal 42" for one without a name.
std::string signal_name(int signal);

}  // namespace ddprun
