// The processes below this one: finding, signalling, ending and reaping them.
//
// The callers (guardian, keeper, agent, and the warden of ddprun::spawn) are child subreapers:
// whatever is started below them, also by way of setsid and double forks, stays below them or comes
// back to them when its parent dies. Any thread; the process-wide state is the kernel's.
#pragma once

#include <sys/types.h>

#include <set>
#include <string>
#include <vector>

#include "base/clock.h"

namespace ddprun {

// How long SIGKILL may take to end a process before somebody is told that it cannot be killed.
inline constexpr Duration kKillPatience = std::chrono::seconds(30);

// Makes this process the one that orphaned descendants are given to (Linux 3.4).
void become_subreaper();

// Sends the signal to the process if it is a descendant of this one, and to no other process that was given
// its number meanwhile.
void signal_descendant(pid_t pid, int signal);

// Sends the signal to every descendant of this process, and adds them to `told`. SIGCONT follows
// whatever is not SIGKILL, so that stopped ones can react.
void signal_descendants(int signal, std::set<pid_t>& told);

// SIGSTOP to every descendant, SIGCONT to every descendant.
void suspend_descendants();
void resume_descendants();

// What signal_descendants() does for children of this process that are not in `told`, and what is below
// them: a process that forked while the snapshot was taken and then died of the signal left these to us.
void signal_new_children(int signal, std::set<pid_t>& told);

// "state S, sleeping (futex_wait_queue)"; empty: there is no such process.
std::string state_of_process(pid_t pid);

// The process that does the work of this one: itself, or, where it is a shell or another wrapper that
// waits for its only child, that child.
pid_t working_process(pid_t pid);

// What the kernel says of descendants that are still there, of the first few: "pid 4711 (python) is in
// state D, an uninterruptible system call (nfs_wait_bit_killable)".
std::vector<std::string> describe_descendants();

// Whether this process has a child, living or not yet reaped. Without one it has no descendant,
// because it is a subreaper.
bool has_children();

// Kills and reaps every descendant, again and again until there is none, or until `allowed` has
// passed (a process in an uninterruptible system call cannot be killed). Returns whether none is
// left. Blocks.
bool end_all_descendants(Duration allowed);

}  // namespace ddprun
