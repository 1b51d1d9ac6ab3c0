// `ddprun --hosts` and --hostfile: makes the job of the near end of ssh (launcher/ssh/head.h) from
// the command line. Main thread.
#pragma once

#include <string>

#include "base/result.h"
#include "launcher/options/command_line.h"
#include "launcher/ssh/head.h"

namespace ddprun {

// Checks the options, and reads the files of --hostfile and --copy. The error names the option; it
// is kInvalidArgument if options contradict --hosts. REQUIRES: line.options.uses_ssh().
Result<HeadJob> plan_over_ssh(const CommandLine& line);

// Returns what --dry-run prints: what runs on each host, and the ssh command that starts it.
std::string ssh_text(const HeadJob& job);

}  // namespace ddprun
