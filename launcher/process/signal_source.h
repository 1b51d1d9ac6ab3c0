// Signals as something to wait for together with other descriptors (signalfd), and who sent them.
// For guardian, keeper and agent; any thread, but the signals must be blocked in all of them.
#pragma once

#include <sys/types.h>

#include <optional>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"

namespace ddprun {

struct TakenSignal {
  int number = 0;
  pid_t sender = 0;
};

// Those that this process does not ignore (nohup). An ignored signal that is blocked is kept, not
// ignored, so a signal source must not get it.
std::vector<int> without_ignored(std::vector<int> signals);

// In this thread, and in what it starts.
void block_signals(const std::vector<int>& signals);

// Blocks the signals in this thread and returns a descriptor that is readable when one has come; to
// a process forked from here that means its own signals. None of them is ignored. Fails where no
// descriptor is to be had.
Result<UniqueFd> open_signal_source(const std::vector<int>& signals);

// The next signal that has come; nullopt: none. Does not wait.
std::optional<TakenSignal> next_signal(int source);

}  // namespace ddprun
