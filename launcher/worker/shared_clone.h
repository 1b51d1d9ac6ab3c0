// start_sharing_memory(): a child process without a copy of this one's memory.
//
// fork() copies the page tables and makes every page that is written afterwards a fault: for the
// agent about 0.2 ms a worker. The child made here runs in the memory of its parent, whose calling
// thread sleeps until the child has executed a program or has ended (vfork's way; why not vfork():
// docs/decisions/0007-start-of-workers.md).
//
// One thread of a process at a time; the kernel ties PR_SET_PDEATHSIG to that thread.
#pragma once

#include <sys/types.h>

#include <utility>

#include "base/result.h"
#include "base/unique_fd.h"

namespace ddprun {

struct ClonedChild {
  pid_t pid = -1;
  UniqueFd pidfd;  // closed on exec
};

// Ends such a child: without _exit(), which sanitizers take for the end of the process whose memory
// they are in.
[[noreturn]] void leave_shared(int code);

// Runs `body(argument)` in the child; it must execute a program or leave_shared(), and may call only
// what is async-signal-safe and allocates nothing. What it writes, the parent reads afterwards.
//
// cgroup: a descriptor of the directory of a control group (v2) which the child is born into, or -1.
// Where the kernel or a filter knows no such birth, the child is moved into it before `body`; where
// that is refused as well it runs outside.
//
// The error's sys_errno is clone's. Signals should be blocked, or their handlers harmless.
Result<ClonedChild> start_sharing_memory(int cgroup, void (*body)(void*), void* argument);

}  // namespace ddprun
