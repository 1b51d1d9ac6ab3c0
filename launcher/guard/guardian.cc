#include "launcher/guard/guardian.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <optional>

#include "base/assert.h"
#include "base/deadline.h"
#include "base/exit_codes.h"
#include "base/pipe.h"
#include "base/poll_until.h"
#include "base/process_handle.h"
#include "base/process_tree.h"
#include "base/read_all.h"
#include "base/result.h"
#include "base/signal_names.h"
#include "base/wait_status.h"
#include "launcher/guard/control_place.h"
#include "launcher/guard/run_cgroup.h"
#include "launcher/guard/run_directory.h"
#include "launcher/process/own_cgroup.h"
#include "launcher/process/signal_source.h"

namespace ddprun {
namespace {

// How long a guard waits for the agent to end everything, before the guard does it.
constexpr Duration kAgentEndsItself = std::chrono::seconds(5);
constexpr Duration kAfterTheAgent = std::chrono::seconds(1);
constexpr Duration kReaderPatience = std::chrono::seconds(1);

// Descriptors that guardian, keeper and agent share. Created before the first fork.
struct Ties {
  UniqueFd signals;  // a signalfd: has the signals of the process that reads it
  Pipe guardian_alive;
  Pipe keeper_alive;
  Pipe agent_pid;
  Pipe input;
};

Result<Ties> make_ties(const std::vector<int>& signals) {
  Ties ties;
  Result<UniqueFd> source = open_signal_source(signals);
  if (!source) return source.error();
  ties.signals = std::move(*source);
  for (Pipe* pipe : {&ties.guardian_alive, &ties.keeper_alive, &ties.agent_pid, &ties.input}) {
    Result<Pipe> made = make_pipe();
    if (!made) return made.error();
    *pipe = std::move(*made);
  }
  return ties;
}

// InputPump: copies terminal input into a pipe to the agent. The pipe keeps input that the agent
// has not read. Input for which the pipe has no room is dropped: a guardian that waited could
// not forward signals.
class InputPump {
 public:
  // to: the pipe's writing end; invalid: nothing is read.
  explicit InputPump(UniqueFd to) : to_(std::move(to)) {
    if (!to_.valid()) return;
    fcntl(to_.get(), F_SETFL, O_NONBLOCK);
    std::signal(SIGTTIN, SIG_IGN);  // in the background a read fails instead, see pump()
  }
  // Returns the descriptor to wait for; -1: none.
  int source() const { return to_.valid() && !in_background_ ? STDIN_FILENO : -1; }

  // REQUIRES: source() is readable.
  void pump() {
    std::array<char, 1024> bytes;
    const ssize_t count = read(STDIN_FILENO, bytes.data(), bytes.size());
    in_background_ = count < 0 && errno == EIO;
    if (count > 0) {
      [[maybe_unused]] const ssize_t passed =
          write(to_.get(), bytes.data(), static_cast<std::size_t>(count));
    } else if (!in_background_ && !(count < 0 && (errno == EINTR || errno == EAGAIN))) {
      to_.reset();
    }
  }
  // The shell may have put the job into the foreground.
  void resume() { in_background_ = false; }

 private:
  UniqueFd to_;
  bool in_background_ = false;
};

// Writes a line to stderr. Waits only kReaderPatience for a reader that has stopped, because the
// message is not worth a longer stay.
void say(const GuardianOptions& options, const std::string& text) {
  const std::string line = options.line_of ? options.line_of(text) : "ddprun: " + text + "\n";
  pollfd fd{STDERR_FILENO, POLLOUT, 0};
  if (!poll_until({&fd, 1}, BootClock::now() + kReaderPatience)) return;
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, line.data(), line.size());
}

// Waits until a descriptor is readable and returns which ones are; -1 never is.
template <class... Descriptors>
std::array<bool, sizeof...(Descriptors)> wait_readable(Descriptors... descriptors) {
  std::array<pollfd, sizeof...(descriptors)> fds{pollfd{descriptors, POLLIN, 0}...};
  while (poll(fds.data(), fds.size(), -1) < 0 && errno == EINTR) {
  }
  std::array<bool, sizeof...(descriptors)> readable{};
  for (std::size_t i = 0; i < fds.size(); ++i) readable[i] = fds[i].revents != 0;
  return readable;
}

bool has_ended(int pipe_end) {
  pollfd fd{pipe_end, POLLIN, 0};
  return poll(&fd, 1, 0) > 0;
}

// Returns the status of `child` if it has ended. Also reaps adopted orphans.
std::optional<int> reap(pid_t child) {
  std::optional<int> status_of_child;
  int status = 0;
  pid_t reaped = 0;
  while ((reaped = waitpid(-1, &status, WNOHANG)) > 0) {
    if (reaped == child) status_of_child = status;
  }
  return status_of_child;
}

// Removes the run's control group, scratch directory and control socket.
void remove_traces(const GuardianOptions& options) {
  remove_cgroup(options.cgroup);
  remove_files(options.scratch_directory);
  remove_control_socket(options.control_socket);
}

// Ends all remaining processes, reports if some cannot be killed, and removes the run's traces.
void clear_up(const GuardianOptions& options, Duration patience = kKillPatience) {
  kill_cgroup(options.cgroup);
  if (!end_all_descendants(patience)) {
    say(options,
        "some processes cannot be killed (in an uninterruptible system call?); they end when that "
        "call ends");
  }
  remove_traces(options);
}

// Removes what earlier runs left if all their processes were killed at once or the machine
// crashed.
void remove_abandoned(const GuardianOptions& options) {
  find_control_sockets();  // removes the sockets that have no listener
  for (const std::string& place : places_for_files()) {
    for (const RunDirectory& run : abandoned_in(place)) {
      remove_files(run.path);
      say(options, "removed " + run.path + ", left by a run whose guards were all killed");
    }
  }
  const std::string own = own_cgroup_directory();
  for (const RunDirectory& run : own.empty() ? std::vector<RunDirectory>() : abandoned_in(own)) {
    if (remove_cgroup(run.path)) {
      say(options,
          "removed the control group " + run.path + ", left by a run whose guards were all killed");
    }
  }
}

// Runs the keeper (see the header). Never returns.
[[noreturn]] void keep(const GuardianOptions& options, pid_t agent, const UniqueFd& signals,
                       const UniqueFd& guardian_alive) {
  prctl(PR_SET_NAME, "ddp-keeper");
  // Leaves the terminal's foreground process group, so that Ctrl-C and Ctrl-Z do not reach it.
  setsid();
  // A signal to all processes of a job reaches the keeper too. It ignores it and ends when the
  // agent ends.
  for (const int signal : kPassedSignals) std::signal(signal, SIG_IGN);
  for (const int signal : kRelayedSignals) std::signal(signal, SIG_IGN);
  // Done by the keeper, because nothing waits for the keeper.
  remove_abandoned(options);
  std::optional<int> status;
  std::optional<Deadline> patience;
  while (!(status = reap(agent))) {
    if (has_ended(guardian_alive.get())) {
      if (!patience) patience.emplace(kAgentEndsItself);
      if (patience->passed()) break;
      pollfd fd{signals.get(), POLLIN, 0};
      poll_until({&fd, 1}, patience->when());
    } else {
      wait_readable(signals.get(), guardian_alive.get());
    }
    while (next_signal(signals.get())) {
    }
  }
  if (!status || WIFSIGNALED(*status)) {
    clear_up(options);
    if (status && !has_ended(guardian_alive.get())) {
      say(options, "the agent (pid " + std::to_string(agent) + ") was killed by " +
                       signal_name(WTERMSIG(*status)) +
                       "; every process of the job on this node was ended");
    }
    _exit(to_int(ExitCode::kInternal));
  }
  // An agent that ended by itself has given up on the processes that it left.
  if (has_children() || has_ended(guardian_alive.get())) clear_up(options, kAfterTheAgent);
  _exit(exit_code_of_status(*status));
}

// Starts the agent, and then keeps it. Runs in the process of the keeper. Never returns.
[[noreturn]] void run_keeper(const GuardianOptions& options, Ties& ties, pid_t guardian,
                             const std::function<int(Guards)>& agent) {
  auto& [signals, guardian_alive, keeper_alive, agent_pid, input] = ties;
  guardian_alive.write.reset();
  agent_pid.read.reset();
  input.write.reset();
  become_subreaper();
  const pid_t agent_process = fork();
  const int fork_errno = errno;
  if (agent_process == 0) {
    keeper_alive.write.reset();
    agent_pid.write.reset();
    // A process group of its own: signals of the terminal reach only the guardian, which
    // forwards them once.
    setpgid(0, 0);
    std::signal(SIGTTOU, SIG_IGN);  // ... and it may still write to the terminal
    become_subreaper();
    // The signals stay blocked, because the agent reads them from a descriptor too.
    const int code = agent({std::move(guardian_alive.read), std::move(keeper_alive.read), guardian,
                            std::move(input.read)});
    std::fflush(nullptr);
    _exit(code);
  }
  keeper_alive.read.reset();
  input.read.reset();
  // The agent's process group must exist before the guardian sends a signal to it.
  if (agent_process > 0) setpgid(agent_process, agent_process);
  [[maybe_unused]] const ssize_t written =
      write(agent_pid.write.get(), &agent_process, sizeof agent_process);
  agent_pid.write.reset();
  if (agent_process < 0) {
    say(options, "cannot start: " + system_error("fork the agent", fork_errno).message());
    _exit(to_int(ExitCode::kCannotStart));
  }
  keep(options, agent_process, signals, guardian_alive.read);
}

}  // namespace

int run_guarded(const GuardianOptions& options, const std::function<int(Guards)>& agent) {
  become_subreaper();
  std::vector<int> caught = without_ignored(options.forwarded);
  caught.push_back(SIGCHLD);
  if (options.passes_input) caught.push_back(SIGCONT);
  std::signal(SIGPIPE, SIG_IGN);
  const auto cannot_start = [&](const Error& error) {
    say(options, "cannot start: " + error.message());
    remove_traces(options);
    return to_int(ExitCode::kCannotStart);
  };
  Result<Ties> ties = make_ties(caught);
  if (!ties) return cannot_start(ties.error());
  auto& [signals, guardian_alive, keeper_alive, agent_pid, input] = *ties;
  if (!options.passes_input) input = {};
  std::fflush(nullptr);

  const pid_t guardian = getpid();
  const pid_t keeper = fork();
  if (keeper < 0) return cannot_start(system_error("fork the keeper", errno));
  if (keeper == 0) run_keeper(options, *ties, guardian, agent);
  guardian_alive.read.reset();
  keeper_alive.read.reset();
  keeper_alive.write.reset();
  agent_pid.write.reset();
  input.read.reset();

  pid_t agent_process = -1;
  read_all(agent_pid.read.get(), reinterpret_cast<char*>(&agent_process), sizeof agent_process);
  const ProcessHandle agent_handle(agent_process, keeper);
  InputPump pump(std::move(input.write));
  std::optional<int> status;
  while (!(status = reap(keeper))) {
    if (wait_readable(signals.get(), pump.source())[1]) pump.pump();
    while (const std::optional<TakenSignal> signal = next_signal(signals.get())) {
      if (signal->number == SIGCONT) pump.resume();
      if (signal->number == SIGCHLD) continue;
      if (options.manager != 0 && signal->sender == options.manager) continue;
      agent_handle.signal(signal->number);
      // Ctrl-Z: the shell waits until this process stops. The agent keeps running, because it
      // must renew its lease.
      if (signal->number == SIGTSTP && options.stops) raise(SIGSTOP);
    }
  }
  DDPRUN_ASSERT(getpid() == guardian, "only the guardian comes here");
  if (WIFSIGNALED(*status)) {
    clear_up(options);
    say(options, "the keeper (pid " + std::to_string(keeper) + ") was killed by " +
                     signal_name(WTERMSIG(*status)) +
                     "; every process of the job on this node was ended");
    return to_int(ExitCode::kInternal);
  }
  remove_traces(options);
  return exit_code_of_status(*status);
}

}  // namespace ddprun
