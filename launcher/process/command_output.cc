#include "launcher/process/command_output.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>

#include "base/pidfd.h"
#include "base/pipe.h"
#include "base/poll_until.h"
#include "base/wait_status.h"
#include "launcher/process/exec.h"

namespace ddprun {
namespace {

constexpr std::size_t kMaxBytes = 1 << 20;

// Starts the program with `output` as its stdout. Returns 0 if it cannot be started.
pid_t start(const std::vector<std::string>& command, Stderr errors, int output) {
  const std::vector<char*> arguments = exec_arguments(command);
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&files, output, STDOUT_FILENO);
  if (errors == Stderr::kRead) {
    posix_spawn_file_actions_adddup2(&files, output, STDERR_FILENO);
  } else {
    posix_spawn_file_actions_addopen(&files, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  }
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none;
  sigset_t all;
  sigemptyset(&none);
  sigfillset(&all);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &all);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  pid_t pid = 0;
  const int failed =
      posix_spawnp(&pid, arguments.front(), &files, &attributes, arguments.data(), environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&files);
  return failed == 0 ? pid : 0;
}

// Returns the exit code of the child once it has ended.
std::optional<int> reap(pid_t child) {
  int status = 0;
  if (waitpid(child, &status, 0) != child) return std::nullopt;
  return exit_code_of_status(status);
}

}  // namespace

CommandOutput output_of(const std::vector<std::string>& command, const Deadline& deadline,
                        Stderr errors, int stop) {
  CommandOutput result;
  Result<Pipe> pipe = make_pipe();
  if (!pipe) return result;
  std::array<pollfd, 2> watched{{{pipe->read.get(), POLLIN, 0}, {stop, POLLIN, 0}}};
  if (deadline.passed() || (poll(&watched[1], 1, 0) > 0 && watched[1].revents != 0)) return result;
  const pid_t pid = start(command, errors, pipe->write.get());
  pipe->write.reset();
  if (pid == 0) return result;
  const UniqueFd program = pidfd_of(pid);  // its pid may be reused after it is reaped

  const TimePoint until = BootClock::now() + deadline.remaining();
  bool is_closed = false;
  while (result.text.size() < kMaxBytes) {
    if (!poll_until(watched, until) || watched[1].revents != 0) break;
    if (is_closed) {
      result.exit_code = reap(pid);
      return result;
    }
    std::array<char, 4096> buffer;
    const ssize_t count = read(pipe->read.get(), buffer.data(), buffer.size());
    if (count > 0) {
      result.text.append(buffer.data(), static_cast<std::size_t>(count));
    } else if (program.valid()) {
      is_closed = true;
      watched[0].fd = program.get();
    } else {
      result.exit_code = reap(pid);  // Linux before 5.3 has no pidfd
      return result;
    }
  }
  if (program.valid()) syscall(SYS_pidfd_send_signal, program.get(), SIGKILL, nullptr, 0);
  return result;
}

}  // namespace ddprun
