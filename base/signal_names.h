// Signals by name, for people and for options. Pure functions; any thread.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace ddprun {

// "SIGKILL" for 9; "signal 42" for one without a name.
std::string signal_name(int signal);

// 15 for "SIGTERM" or "TERM"; nullopt for anything else.
std::optional<int> signal_number(std::string_view name);

}  // namespace ddprun
