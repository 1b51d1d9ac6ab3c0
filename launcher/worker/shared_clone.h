// start_sharing_memory(): creates a child process without copying this process's memory.
//
// fork() copies the page tables, and each page written afterwards causes a page fault. For the
// agent this costs about 0.2 ms per worker. Here the child runs in its parent's memory. The
// calling thread sleeps until the child has executed a program or has ended, as with vfork().
// docs/decisions/0007-start-of-workers.md says why vfork() itself is not used.
//
// Only one thread of a process may call this at a time. The kernel ties PR_SET_PDEATHSIG to that
// thread.
#pragma once

#include <sys/types.h>

#include "base/result.h"
#include "base/unique_fd.h"

namespace ddprun {

struct ClonedChild {
  pid_t pid = -1;
  UniqueFd pidfd;  // closed on exec
};

// Ends such a child without _exit(). Sanitizers take _exit() for the end of the process whose
// memory they are in.
[[noreturn]] void leave_shared(int code);

// Runs `body(argument)` in the child. `body` must execute a program or call leave_shared(). It
// may call only async-signal-safe functions and must not allocate. The parent sees what `body`
// writes to memory.
//
// cgroup: a descriptor of the directory of a control group (v2) in which the child is created,
// or -1. If the kernel or a seccomp filter does not support that, the child is moved into the
// group before `body` runs. If that is refused too, the child runs outside the group.
//
// The error's sys_errno is that of clone. Signals should be blocked, or their handlers harmless.
Result<ClonedChild> start_sharing_memory(int cgroup, void (*body)(void*), void* argument);

}  // namespace ddprun
