// Names of signals, for people and for workers, and the signals that ddprun forwards. Pure; any
// thread.
#pragma once

#include <array>
#include <csignal>
#include <optional>
#include <string>
#include <string_view>

namespace ddprun {

// Returns "SIGKILL" for 9; "signal 42" for one without a name.
std::string signal_name(int signal);

// Parses "USR1", "SIGUSR1" or "10". nullopt: there is no such signal, or it has no name here.
std::optional<int> signal_by_name(std::string_view name);

// Signals that end a job: ddprun catches them and forwards them to its workers.
inline constexpr std::array kPassedSignals{SIGTERM, SIGINT, SIGHUP, SIGQUIT};
// Signals for the workers alone, and those that stop and continue the workers.
inline constexpr std::array kRelayedSignals{SIGUSR1, SIGUSR2, SIGCONT, SIGTSTP};

}  // namespace ddprun
