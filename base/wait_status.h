// exit_code_of_status(): turns a status of waitpid(2) into an exit code. Pure; any thread.
#pragma once

#include <sys/wait.h>

#include "base/exit_codes.h"

namespace ddprun {

// Returns the exit code of a process that has ended.
inline int exit_code_of_status(int status) {
  return WIFEXITED(status) ? WEXITSTATUS(status) : exit_code_of_signal(WTERMSIG(status));
}

}  // namespace ddprun
