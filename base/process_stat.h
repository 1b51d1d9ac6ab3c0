// Reads what the kernel says of a process in /proc/<pid>/stat. Any thread.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>

#include "base/clock.h"

namespace ddprun {

struct ProcessStat {
  char state = '?';  // 'R', 'S', 'T' (stopped by a signal), 't' (by a debugger), 'Z', ...
  pid_t parent = 0;
  Duration cpu{};                   // that its threads have used, in user and system mode
  std::int64_t resident_bytes = 0;  // pages in memory, shared ones included

  bool is_stopped() const { return state == 'T' || state == 't'; }
};

// Returns the process's state; nullopt: there is no such process, or /proc does not say.
std::optional<ProcessStat> process_stat(pid_t pid);

// Returns the pid of a pidfd's process, in this process's PID namespace. -1: the process is not
// visible there, or is gone.
pid_t process_behind(int pidfd);

}  // namespace ddprun
