// run_end_command(): runs the command of --on-end or --on-failure when the job is over.
//
// The agent calls it on its main thread, as the last thing that it does.
#pragma once

#include <string>

#include "base/clock.h"

namespace ddprun {

struct EndCommand {
  std::string text;      // for /bin/sh -c
  std::string report;    // its standard input
  std::string headline;  // its DDPRUN_HEADLINE
};

// How long a command may take.
inline constexpr Duration kEndCommandTime = std::chrono::seconds(30);

// Runs the command, and waits until it has ended. Its output goes to this process's stderr. Kills
// it after `allowed`, or when a signal arrives at `signals` (a descriptor of open_signal_source())
// that ends a job. Then ends all processes below this one, because the command may have left some.
// Returns what went wrong, for people; empty: nothing.
std::string run_end_command(const EndCommand& command, int signals,
                            Duration allowed = kEndCommandTime);

}  // namespace ddprun
