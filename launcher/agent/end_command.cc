#include "launcher/agent/end_command.h"

#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <optional>

#include "base/concat.h"
#include "base/pidfd.h"
#include "base/process_tree.h"
#include "base/signal_names.h"
#include "base/spawn_program.h"
#include "base/unique_fd.h"
#include "base/wait_status.h"
#include "base/write_all.h"
#include "launcher/process/signal_source.h"

namespace ddprun {
namespace {

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
  const Result<pid_t> started = spawn_program({.words = {"/bin/sh", "-c", command.text},
                                               .variables = {{"DDPRUN_HEADLINE", command.headline}},
                                               .input = input.get(),
                                               .output = STDERR_FILENO,
                                               .has_own_group = true});
  if (!started) return started.error().message();
  const pid_t pid = *started;
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
