#include "launcher/process/signal_source.h"

#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>

#include "base/assert.h"

namespace ddprun {

std::vector<int> without_ignored(std::vector<int> signals) {
  std::erase_if(signals, [](int signal) {
    struct sigaction present {};
    sigaction(signal, nullptr, &present);
    return present.sa_handler == SIG_IGN;
  });
  return signals;
}

namespace {

sigset_t set_of(const std::vector<int>& signals) {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : signals) sigaddset(&set, signal);
  return set;
}

}  // namespace

void block_signals(const std::vector<int>& signals) {
  const sigset_t set = set_of(signals);
  DDPRUN_ASSERT(pthread_sigmask(SIG_BLOCK, &set, nullptr) == 0, "the set is valid");
}

Result<UniqueFd> open_signal_source(const std::vector<int>& signals) {
  block_signals(signals);
  const sigset_t set = set_of(signals);
  UniqueFd source(signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!source.valid()) return system_error("open a descriptor for signals", errno);
  return source;
}

std::optional<TakenSignal> next_signal(int source) {
  signalfd_siginfo info;
  if (read(source, &info, sizeof info) != sizeof info) return std::nullopt;
  return TakenSignal{static_cast<int>(info.ssi_signo), static_cast<pid_t>(info.ssi_pid)};
}

}  // namespace ddprun
