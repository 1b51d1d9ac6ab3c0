// Makes signals readable from a descriptor (signalfd), so that they can be waited for together
// with other descriptors, and returns their senders. For guardian, keeper and agent. Any
// thread, but the signals must be blocked in all threads.
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

// Returns the signals that this process does not ignore (nohup ignores some). An ignored signal
// that is blocked is kept, not ignored, so a signal source must not get it.
std::vector<int> without_ignored(std::vector<int> signals);

// Blocks the signals in this thread and in the threads that it starts.
void block_signals(const std::vector<int>& signals);

// Blocks the signals in this thread and returns a descriptor that is readable when a signal has
// come. In a process forked from here, the descriptor shows that process's own signals.
// Precondition: none of the signals is ignored. Fails if no descriptor can be opened.
Result<UniqueFd> open_signal_source(const std::vector<int>& signals);

// Returns the next signal that has come; nullopt: none. Does not wait.
std::optional<TakenSignal> next_signal(int source);

}  // namespace ddprun
