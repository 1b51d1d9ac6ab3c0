// Signals by name, for people and for workers, and those that ddprun passes on. Pure; any thread.
#pragma once

#include <array>
#include <csignal>
#include <optional>
#include <string>
#include <string_view>

namespace ddprun {

// "SIGKILL" for 9; "signal 42" for one without a name.
std::string signal_name(int signal);

// "USR1", "SIGUSR1" or "10"; nullopt: there is no such signal, or it has no name here.
std::optional<int> signal_by_name(std::string_view name);

// What tells a job to end: ddprun catches these and passes them on to its workers.
inline constexpr std::array kPassedSignals{SIGTERM, SIGINT, SIGHUP, SIGQUIT};
// What is for the workers alone, and what stops them and lets them go on.
inline constexpr std::array kRelayedSignals{SIGUSR1, SIGUSR2, SIGCONT, SIGTSTP};

}  // namespace ddprun
