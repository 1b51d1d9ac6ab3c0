// output_of(): runs another program for what it prints, as a debugger or a command of a scheduler.
// Any thread.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/deadline.h"

namespace ddprun {

struct CommandOutput {
  std::string text;         // at most 1 MiB
  bool is_started = false;  // the program was
  // nullopt: the program could not be started or was killed here, or the agent reaped it.
  std::optional<int> exit_code;
};

enum class Stderr { kDropped, kRead };  // kRead: in `text`, with stdout

// Runs the program, which is looked for in PATH, with /dev/null as stdin. No signal is blocked or
// ignored in it, whatever this process does. Waits until the program has ended and its output is
// closed. At the deadline, or when `stop` (a descriptor; -1: none) is readable, kills the program,
// does not wait for its end, and returns the text so far.
CommandOutput output_of(const std::vector<std::string>& command, const Deadline& deadline,
                        Stderr errors = Stderr::kDropped, int stop = -1);

}  // namespace ddprun
