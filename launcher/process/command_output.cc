#include "launcher/process/command_output.h"

#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>

#include "base/pidfd.h"
#include "base/pipe.h"
#include "base/poll_until.h"
#include "base/spawn_program.h"
#include "base/wait_status.h"

namespace ddprun {
namespace {

constexpr std::size_t kMaxBytes = 1 << 20;

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
  const int output = pipe->write.get();
  const Result<pid_t> pid =
      spawn_program({.words = command,
                     .output = output,
                     .errors = errors == Stderr::kRead ? output : ProgramStart::kNull});
  pipe->write.reset();
  if (!pid) return result;
  result.is_started = true;
  const UniqueFd program = pidfd_of(*pid);  // its pid may be reused after it is reaped

  const TimePoint until = BootClock::now() + deadline.remaining();
  bool is_closed = false;
  while (result.text.size() < kMaxBytes) {
    if (!poll_until(watched, until) || watched[1].revents != 0) break;
    if (is_closed) {
      result.exit_code = reap(*pid);
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
      result.exit_code = reap(*pid);  // Linux before 5.3 has no pidfd
      return result;
    }
  }
  if (program.valid()) syscall(SYS_pidfd_send_signal, program.get(), SIGKILL, nullptr, 0);
  return result;
}

}  // namespace ddprun
