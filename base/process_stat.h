// What the kernel says of a process in /proc/<pid>/stat. Any thread.
#pragma once

#include <sys/types.h>

#include <optional>

namespace ddprun {

struct ProcessStat {
  char state = '?';  // 'R', 'S', 'T' (stopped by a signal), 't' (by a debugger), 'Z', ...
  pid_t parent = 0;
};

// nullopt: there is no such process, or /proc does not tell.
std::optional<ProcessStat> process_stat(pid_t pid);

// The process behind a pidfd, as this one counts processes; -1 where it does not see it, or it is gone.
pid_t process_behind(int pidfd);

}  // namespace ddprun
