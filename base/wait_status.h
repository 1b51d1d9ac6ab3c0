// What waitpid(2) says of a process, as an exit code. Pure; any thread.
#pragma once

#include <sys/wait.h>

#include "base/exit_codes.h"

namespace ddprun {

// Of the status of a process that has ended.
inline int exit_code_of_status(int status) {
  return WIFEXITED(status) ? WEXITSTATUS(status) : exit_code_of_signal(WTERMSIG(status));
}

}  // namespace ddprun
