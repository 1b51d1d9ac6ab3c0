// pidfd_of(): a process as a descriptor. Any thread.
#pragma once

#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#include "base/unique_fd.h"

namespace ddprun {

// It stands for this process even when its number has been given to another one, can be read when
// the process has ended, and is closed on exec. Not valid: see errno; ESRCH where there is none.
inline UniqueFd pidfd_of(pid_t pid) {
  return UniqueFd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
}

}  // namespace ddprun
