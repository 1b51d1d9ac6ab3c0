// pidfd_of(): opens a descriptor for a process. Any thread.
#pragma once

#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#include "base/unique_fd.h"

namespace ddprun {

// Returns a descriptor that stands for this process even after its number was given to another
// one. The descriptor is readable when the process has ended, and is closed on exec. Not valid:
// errno has the reason; ESRCH if there is no such process.
inline UniqueFd pidfd_of(pid_t pid) {
  return UniqueFd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
}

}  // namespace ddprun
