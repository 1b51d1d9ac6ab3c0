#include "base/process_tree.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <fstream>
#include <map>
#include <optional>

#include "base/assert.h"
#include "base/concat.h"
#include "base/deadline.h"
#include "base/parse_number.h"
#include "base/pidfd.h"
#include "base/process_stat.h"
#include "base/small_file.h"

namespace ddprun {
namespace {

// Returns the names in a directory of /proc that are numbers.
std::vector<pid_t> numbers_in(const std::string& path) {
  std::vector<pid_t> numbers;
  DIR* directory = opendir(path.c_str());
  if (!directory) return numbers;
  while (const dirent* entry = readdir(directory)) {
    if (const auto number = parse_number<pid_t>(entry->d_name)) numbers.push_back(*number);
  }
  closedir(directory);
  return numbers;
}

// Returns the children of one process from the kernel's lists, one for each thread
// (CONFIG_PROC_CHILDREN). A child is in the list of the thread that made it.
std::vector<pid_t> listed_children_of(pid_t parent) {
  std::vector<pid_t> children;
  const std::string tasks = concat("/proc/", parent, "/task");
  for (const pid_t thread : numbers_in(tasks)) {
    std::ifstream list(concat(tasks, "/", thread, "/children"));
    for (pid_t child = 0; list >> child;) children.push_back(child);
  }
  return children;
}

// Returns the children of all processes, for kernels without those lists: every process names
// its parent.
std::map<pid_t, std::vector<pid_t>> children_by_parent() {
  std::map<pid_t, std::vector<pid_t>> children;
  for (const pid_t pid : numbers_in("/proc")) {
    if (const std::optional<ProcessStat> stat = process_stat(pid)) {
      children[stat->parent].push_back(pid);
    }
  }
  return children;
}

std::string first_line_of_proc(pid_t pid, const std::string& name) {
  return first_line_of(concat("/proc/", pid, "/", name));
}

bool kernel_lists_children() {
  static const bool lists =
      access(concat("/proc/self/task/", getpid(), "/children").c_str(), R_OK) == 0;
  return lists;
}

std::vector<pid_t> children_of(pid_t parent) {
  return kernel_lists_children() ? listed_children_of(parent) : children_by_parent()[parent];
}

// Returns every living descendant of `root`, parents before children. This is a snapshot: a
// process that forks meanwhile may add a child that is not in it.
std::vector<pid_t> descendants_of(pid_t root) {
  std::map<pid_t, std::vector<pid_t>> scanned;
  if (!kernel_lists_children()) scanned = children_by_parent();
  std::vector<pid_t> found;
  const auto add_children = [&](pid_t parent) {
    const std::vector<pid_t> children =
        scanned.empty() ? listed_children_of(parent) : scanned[parent];
    found.insert(found.end(), children.begin(), children.end());
  };
  add_children(root);
  for (std::size_t i = 0; i < found.size(); ++i) add_children(found[i]);
  return found;
}

// Returns whether the process is a descendant of this one now.
bool is_descendant(pid_t pid) {
  constexpr int kMostLooks = 10'000;
  const pid_t self = getpid();
  pid_t above = pid;
  for (int look = 0; look < kMostLooks && above > 1; ++look) {
    const std::optional<ProcessStat> stat = process_stat(above);
    if (stat && stat->parent == self) return true;
    if (!stat && above == pid) return false;
    // A process above it has ended meanwhile, so start again: it now has another parent.
    above = stat ? stat->parent : pid;
  }
  return false;
}

void send(int signal, const std::vector<pid_t>& processes) {
  for (const pid_t pid : processes) signal_descendant(pid, signal);
  if (signal == SIGKILL) return;
  for (const pid_t pid : processes) signal_descendant(pid, SIGCONT);
}

}  // namespace

// Since the snapshot, a process may have ended, and its number may have gone to a process of
// another job. So the descriptor is opened first. If the number then belongs to a descendant,
// the descriptor stands for that descendant, or for a process that has ended.
void signal_descendant(pid_t pid, int signal) {
  const UniqueFd process = pidfd_of(pid);
  if (!process.valid() && errno == ESRCH) return;
  if (!is_descendant(pid)) return;
  if (process.valid()) {
    syscall(SYS_pidfd_send_signal, process.get(), signal, nullptr, 0);
  } else {
    kill(pid, signal);  // the kernel is old, or no descriptor is left
  }
}

void become_subreaper() {
  DDPRUN_ASSERT(prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0, "Linux 3.4 or newer");
}

void signal_descendants(int signal, std::set<pid_t>& signalled) {
  if (!has_children()) return;
  const std::vector<pid_t> tree = descendants_of(getpid());
  send(signal, tree);
  signalled.insert(tree.begin(), tree.end());
}

void suspend_descendants() {
  for (const pid_t pid : descendants_of(getpid())) signal_descendant(pid, SIGSTOP);
}

void resume_descendants() {
  for (const pid_t pid : descendants_of(getpid())) signal_descendant(pid, SIGCONT);
}

void signal_new_children(int signal, std::set<pid_t>& signalled) {
  if (!has_children()) return;
  for (const pid_t child : children_of(getpid())) {
    if (signalled.contains(child)) continue;
    std::vector<pid_t> tree = descendants_of(child);
    tree.insert(tree.begin(), child);
    send(signal, tree);
    signalled.insert(tree.begin(), tree.end());
  }
}

std::string state_of_process(pid_t pid) {
  const auto meaning = [](char state) -> std::string {
    switch (state) {
      case 'R': return ", running";
      case 'S': return ", sleeping";
      case 'D': return ", an uninterruptible system call";
      case 'T': return ", stopped by a signal";
      case 't': return ", stopped by a debugger";
      case 'Z': return ", ended but still held by its tracer";
      default: return "";
    }
  };
  const std::optional<ProcessStat> stat = process_stat(pid);
  if (!stat) return "";
  std::string text = std::string("state ") + stat->state + meaning(stat->state);
  const std::string where = first_line_of_proc(pid, "wchan");
  if (!where.empty() && where != "0") text += " (" + where + ")";
  return text;
}

std::vector<std::string> describe_descendants() {
  constexpr std::size_t kShown = 4;
  std::vector<std::string> lines;
  for (const pid_t pid : descendants_of(getpid())) {
    const std::string state = state_of_process(pid);
    if (state.empty()) continue;
    if (lines.size() == kShown) {
      lines.emplace_back("and others");
      break;
    }
    lines.push_back(concat("pid ", pid, " (", first_line_of_proc(pid, "comm"), ") is in ", state));
  }
  return lines;
}

pid_t working_process(pid_t pid) {
  constexpr int kDeepest = 16;
  for (int depth = 0; depth < kDeepest; ++depth) {
    if (first_line_of_proc(pid, "wchan") != "do_wait") break;
    const std::vector<pid_t> children = children_of(pid);
    if (children.size() != 1) break;
    pid = children.front();
  }
  return pid;
}

bool has_children() {
  siginfo_t info;
  return waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0 || errno != ECHILD;
}

bool end_all_descendants(Duration allowed) {
  const Deadline deadline(allowed);
  sigset_t child_ended;
  sigset_t before;
  sigemptyset(&child_ended);
  sigaddset(&child_ended, SIGCHLD);
  sigprocmask(SIG_BLOCK, &child_ended, &before);
  bool none_left = false;
  while (!none_left) {
    // Kills all descendants and reaps those that have died. Orphans of the dead become our
    // children.
    send(SIGKILL, descendants_of(getpid()));
    pid_t reaped = 0;
    while ((reaped = waitpid(-1, nullptr, WNOHANG)) > 0) {
    }
    none_left = reaped < 0 && errno == ECHILD;
    if (none_left || deadline.passed()) break;
    // Waits for the next death, but only briefly, because of children born after the snapshot.
    const Duration pause = std::min<Duration>(deadline.remaining(), std::chrono::milliseconds(50));
    const timespec timeout{0, static_cast<long>(pause.count())};
    sigtimedwait(&child_ended, nullptr, &timeout);
  }
  sigprocmask(SIG_SETMASK, &before, nullptr);
  return none_left;
}

}  // namespace ddprun
