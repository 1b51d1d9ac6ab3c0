// Signals by name, for people and for workers, and those that ddprun passes on. Pure; any thread.
#pragma once

#include <array>
#include <csignal>
#include <string>

namespace ddprun {

// "SIGKILL" for 9; "signal 42" for one without a name.
std::string signal_name(int signal);

// What tells a job to end: ddprun catches these and passes them on to its workers.
inline constexpr std::array kPassedSignals{SIGTERM, SIGINT, SIGHUP, SIGQUIT};

}  // namespace ddprun
