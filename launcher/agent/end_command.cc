#include "launcher/agent/end_command.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <optional>
#include <vector>

#include "base/concat.h"
#include "base/pidfd.h"
#include "base/process_tree.h"
#include "base/signal_names.h"
#include "base/unique_fd.h"
#include "base/wait_status.h"
#include "base/write_all.h"
#include "launcher/process/exec.h"
#include "launcher/process/signal_source.h"

namespace ddprun {
namespace {

constexpr std::string_view kHeadline = "DDPRUN_HEADLINE=";

// Returns this process's environment with the headline.
std::vector<std::string> environment_with(const std::string& headline) {
  std::vector<std::string> all;
  for (char** one = environ; *one; ++one) {
    if (!std::string_view(*one).starts_with(kHeadline)) all.emplace_back(*one);
  }
  all.push_back(std::string(kHeadline) + headline);
  return all;
}

// Starts the shell in a process group of its own, so that signals of the terminal reach only this
// process. Returns an errno.
int start(const EndCommand& command, int input, pid_t& pid) {
  const std::vector<std::string> words{"/bin/sh", "-c", command.text};
  const std::vector<std::string> variables = environment_with(command.headline);
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_adddup2(&files, input, STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&files, STDERR_FILENO, STDOUT_FILENO);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none;
  sigset_t all;
  sigemptyset(&none);
  sigfillset(&all);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &all);
  posix_spawnattr_setflags(&attributes,
                           POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
  const int failed = posix_spawn(&pid, words.front().c_str(), &files, &attributes,
                                 exec_arguments(words).data(), exec_arguments(variables).data());
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&files);
  return failed;
}

// Returns the signal that ends a job, if one has come.
std::optional<int> ending_signal(int signals) {
  constexpr std::array kEnding{SIGTERM, SIGINT, SIGHUP, SIGQUIT};
  while (const std::optional<TakenSignal> signal = next_signal(signals)) {
    if (std::ranges::count(kEnding, signal->number) > 0) return signal->number;
  }
  return std::nullopt;
}

}  // namespace

std::string run_end_command(const EndCommand& command, int signals, Duration allowed) {
  const UniqueFd input(memfd_create("ddprun-report", MFD_CLOEXEC));
  if (!input.valid() || !write_all(input.get(), command.report) ||
      lseek(input.get(), 0, SEEK_SET) != 0) {
    return concat("cannot give it the report: ", strerror(errno));
  }
  pid_t pid = 0;
  if (const int failed = start(command, input.get(), pid); failed != 0) {
    return concat("cannot start /bin/sh: ", strerror(failed));
  }
  const UniqueFd program = pidfd_of(pid);
  const TimePoint until = BootClock::now() + allowed;
  std::string trouble;
  int status = 0;
  while (waitpid(pid, &status, WNOHANG) == 0) {
    if (const std::optional<int> signal = ending_signal(signals)) {
      trouble = concat("killed, because ddprun received ", signal_name(*signal));
    } else if (BootClock::now() >= until) {
      trouble = concat("killed, because it took longer than ", allowed);
    }
    if (!trouble.empty()) break;
    // Linux before 5.3 has no pidfd. Then this looks repeatedly.
    const Duration most = program.valid() ? Duration(std::chrono::seconds(1))
                                          : Duration(std::chrono::milliseconds(20));
    const timespec time = to_timespec(std::clamp(until - BootClock::now(), Duration(0), most));
    std::array<pollfd, 2> watched{{{program.get(), POLLIN, 0}, {signals, POLLIN, 0}}};
    ppoll(watched.data(), watched.size(), &time, nullptr);
  }
  end_all_descendants(std::chrono::seconds(1));
  if (!trouble.empty()) return trouble;
  const int code = exit_code_of_status(status);
  return code == 0 ? "" : concat("it ended with exit code ", code);
}

}  // namespace ddprun
