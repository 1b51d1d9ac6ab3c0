#include "worker_lib/util/command_runner.h"

#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/background_thread.h"
#include "base/concat.h"
#include "base/pidfd.h"
#include "base/spawn_program.h"

namespace ddprun {
namespace {

constexpr int kLookMs = 200;
constexpr Duration kGrace = std::chrono::seconds(2);  // between SIGTERM and SIGKILL

// Waits for the end of a child, for kLookMs at most. Returns whether it has ended. descriptor: of
// the child; not valid if the system gave none.
bool ends_soon(pid_t pid, const UniqueFd& descriptor) {
  if (descriptor.valid()) {
    pollfd look{.fd = descriptor.get(), .events = POLLIN, .revents = 0};
    return ::poll(&look, 1, kLookMs) > 0;
  }
  siginfo_t end{};
  const int failed = ::waitid(P_PID, static_cast<id_t>(pid), &end, WEXITED | WNOHANG | WNOWAIT);
  if (failed != 0 || end.si_pid != 0) return true;
  ::poll(nullptr, 0, kLookMs);
  return false;
}

// Waits for the end of a child. Returns its status; nullopt: another part of the program has reaped
// it.
std::optional<int> status_of(pid_t pid) {
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0)
    if (errno != EINTR) return std::nullopt;
  return status;
}

}  // namespace

Result<void> run_command(const std::string& command, const CommandVariables& variables,
                         const std::function<bool()>& is_over) {
  const std::string doing = "run the command '" + command + "'";
  const Result<pid_t> started = spawn_program(
      {.words = {"/bin/sh", "-c", command}, .variables = variables, .has_own_group = true});
  if (!started) return Error(started.error()).within(doing);
  const pid_t pid = *started;
  const UniqueFd descriptor = pidfd_of(pid);
  std::optional<TimePoint> kill_at;
  bool was_ended = false;
  while (!ends_soon(pid, descriptor)) {
    if (!was_ended && is_over()) {
      ::kill(-pid, SIGTERM);
      was_ended = true;
      kill_at = BootClock::now() + kGrace;
    }
    if (kill_at && BootClock::now() >= *kill_at) ::kill(-pid, SIGKILL);
  }
  // Ends what the shell has left. Until the shell is reaped, the number is its group's.
  if (was_ended) ::kill(-pid, SIGKILL);
  const std::optional<int> status = status_of(pid);
  Error error{.kind = ErrorKind::kSystem, .doing = doing};
  if (was_ended)
    error.cause = "it had not ended in time, and was ended";
  else if (!status)
    error.cause = "the program has reaped it, so its exit code is not known";
  else if (WIFSIGNALED(*status))
    error.cause = concat("it was ended by signal ", WTERMSIG(*status));
  else if (WEXITSTATUS(*status) != 0)
    error.cause = concat("exit code ", WEXITSTATUS(*status));
  else
    return {};
  return error;
}

void CommandRunner::begin(CommandVariables variables) {
  const std::lock_guard lock(mutex_);
  if (is_over_) return;
  waiting_ = std::move(variables);
  if (!thread_.joinable())
    if (const Result<void> started = start_thread(thread_, "ddprun-command", [this] { work(); });
        !started)
      warn_(started.error().message());
  changed_.notify_all();
}

void CommandRunner::finish(Duration patience, const std::function<void()>& report) {
  const TimePoint end = BootClock::now() + std::min(patience, kLongestTimeout);
  std::unique_lock lock(mutex_);
  const auto is_idle = [this] { return !is_running_ && (!waiting_ || !thread_.joinable()); };
  while (!is_idle()) {
    changed_.wait_for(lock, std::chrono::milliseconds(kLookMs), is_idle);
    report();
    if (BootClock::now() >= end) break;
  }
  is_over_ = true;
  changed_.notify_all();
  lock.unlock();
  if (thread_.joinable()) thread_.join();
  if (std::exchange(waiting_, std::nullopt))
    warn_("run the command '" + command_ + "': the program ended before the newest event");
}

void CommandRunner::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return is_over_ || waiting_; });
    if (is_over_) return;
    const CommandVariables variables = *std::exchange(waiting_, std::nullopt);
    is_running_ = true;
    lock.unlock();
    const Result<void> done = run_command(command_, variables, [this] {
      const std::lock_guard looking(mutex_);
      return is_over_;
    });
    if (!done) warn_(done.error().message());
    lock.lock();
    is_running_ = false;
    changed_.notify_all();
  }
}

}  // namespace ddprun
