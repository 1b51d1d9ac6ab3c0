// ProcessHandle: signals a process without the risk that its pid now belongs to another process.
// Any thread.
#pragma once

#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#include <optional>

#include "base/pidfd.h"
#include "base/process_stat.h"
#include "base/unique_fd.h"

namespace ddprun {

class ProcessHandle {
 public:
  // Refers to no process if the process is not a child of `parent` now: it has ended, and its pid
  // may belong to another process.
  ProcessHandle(pid_t pid, pid_t parent) : fd_(pidfd_of(pid)) {
    const std::optional<ProcessStat> stat = process_stat(pid);
    if (!stat || stat->parent != parent) fd_.reset();
  }
  // Sends the signal. Does nothing if the process has ended.
  void signal(int number) const {
    if (fd_.valid()) syscall(SYS_pidfd_send_signal, fd_.get(), number, nullptr, 0);
  }

 private:
  UniqueFd fd_;
};

}  // namespace ddprun
