#include "worker_lib/context/save_request.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdlib>
#include <mutex>
#include <string_view>

namespace ddprun {
namespace {

std::atomic<bool> requested = false;
static_assert(std::atomic<bool>::is_always_lock_free, "a signal handler sets it");

// Returns whether the process is slurmstepd. Only calls what a signal handler may call.
bool is_slurmstepd(pid_t pid) {
  char path[32] = "/proc/";
  char* end = path + 6;
  char digits[16];
  int count = 0;
  for (; pid > 0; pid /= 10) digits[count++] = static_cast<char>('0' + pid % 10);
  while (count > 0) *end++ = digits[--count];
  for (const char* rest = "/comm"; *rest; ++rest) *end++ = *rest;
  const int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return false;
  constexpr std::string_view kName = "slurmstepd\n";
  char name[16];
  const ssize_t size = read(file, name, sizeof name);
  close(file);
  return size > 0 && std::string_view(name, static_cast<std::size_t>(size)) == kName;
}

void on_sigterm(int, siginfo_t* info, void*) {
  const int before = errno;
  if (is_slurmstepd(info->si_pid)) {
    requested = true;
  } else {
    std::signal(SIGTERM, SIG_DFL);
    raise(SIGTERM);  // takes effect when this handler returns
  }
  errno = before;
}

void listen_for_slurm() {
  struct sigaction term {};
  if (sigaction(SIGTERM, nullptr, &term) != 0 || term.sa_handler != SIG_DFL) return;
  term.sa_sigaction = on_sigterm;
  term.sa_flags = SA_SIGINFO | SA_RESTART;
  sigaction(SIGTERM, &term, nullptr);
}

}  // namespace

void listen_for_save_requests(int signal) {
  if (signal == 0) return;
  static std::once_flag once;
  std::call_once(once, [signal] {
    struct sigaction action {};
    action.sa_handler = [](int) { requested = true; };
    action.sa_flags = SA_RESTART;
    sigaction(signal, &action, nullptr);
    if (std::getenv("SLURM_JOB_ID")) listen_for_slurm();
    sigset_t waiting;
    sigemptyset(&waiting);
    sigaddset(&waiting, signal);
    pthread_sigmask(SIG_UNBLOCK, &waiting, nullptr);
  });
}

bool save_was_requested() { return requested; }

}  // namespace ddprun
