// Finds, signals, ends and reaps the processes below this one.
//
// The callers (guardian, keeper, agent, and the monitor of ddprun::spawn) are child subreapers.
// All processes started below them stay below them, or return to them when the parent dies,
// even after setsid and double forks. Any thread; the process-wide state is the kernel's.
#pragma once

#include <sys/types.h>

#include <set>
#include <string>
#include <vector>

#include "base/clock.h"

namespace ddprun {

// How long SIGKILL may take to end a process before it is reported that the process cannot be
// killed.
inline constexpr Duration kKillPatience = std::chrono::seconds(30);

// Makes this process the new parent of its orphaned descendants (Linux 3.4).
void become_subreaper();

// Sends the signal to the process if it is a descendant of this one. Never signals another
// process that was given its number meanwhile.
void signal_descendant(pid_t pid, int signal);

// Sends the signal to every descendant of this process, and adds them to `signalled`. Every signal
// except SIGKILL is followed by SIGCONT, so that stopped processes can react.
void signal_descendants(int signal, std::set<pid_t>& signalled);

// Sends SIGSTOP (suspend) or SIGCONT (resume) to every descendant.
void suspend_descendants();
void resume_descendants();

// Does what signal_descendants() does, for the children of this process that are not in
// `signalled`, and for their descendants. A process that forked while the snapshot was taken, and
// then died of the signal, has left these children to this process.
void signal_new_children(int signal, std::set<pid_t>& signalled);

// Returns "state S, sleeping (futex_wait_queue)", for example. Empty: there is no such process.
std::string state_of_process(pid_t pid);

// Returns the process that does the work of `pid`: `pid` itself or, if it is a shell or another
// wrapper that waits for its only child, that child.
pid_t working_process(pid_t pid);

// Describes the first few descendants that still exist, as the kernel sees them: "pid 4711
// (python) is in state D, an uninterruptible system call (nfs_wait_bit_killable)".
std::vector<std::string> describe_descendants();

// Returns whether this process has a child, living or not yet reaped. Without a child it has no
// descendant, because it is a subreaper.
bool has_children();

// Kills and reaps all descendants, repeatedly until there is none or until `allowed` has passed
// (a process in an uninterruptible system call cannot be killed). Returns whether none is left.
// Blocks.
bool end_all_descendants(Duration allowed);

}  // namespace ddprun
