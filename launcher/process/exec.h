// For processes that are forked to execute a program.
#pragma once

#include <sys/types.h>

namespace ddprun {

// Prepares a forked process for exec(). It gets SIGTERM when `parent` ends; if that has happened
// already, it exits. It has a process group of its own, so that signals of the terminal reach only
// the parent, which passes them on. No signal is blocked. Allocates nothing: the parent may have
// threads.
void prepare_child(pid_t parent);

}  // namespace ddprun
