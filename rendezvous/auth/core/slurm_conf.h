// Reads what ddprun needs from slurm.conf. Pure; any thread.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/clock.h"

namespace ddprun {

// Returns the socket of munged from slurm.conf, which names it only if it is not munge's own
// default. The line is `AuthInfo=socket=PATH`, perhaps with other settings after a comma. Names
// are not case-sensitive, and the last line counts. Empty: there is no socket, or its path is
// not absolute. text: the file's contents.
std::string munge_socket_of(std::string_view text);

// Returns KillWait, the time between Slurm's SIGTERM and its SIGKILL; Slurm's default of 30 s if
// the file does not set it. nullopt: a file that this one includes may set it. Source:
// slurm.conf(5).
std::optional<Duration> kill_wait_of(std::string_view text);

}  // namespace ddprun
