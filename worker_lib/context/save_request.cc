#include "worker_lib/context/save_request.h"

#include <atomic>
#include <csignal>
#include <mutex>

namespace ddprun {
namespace {

std::atomic<bool> requested = false;
static_assert(std::atomic<bool>::is_always_lock_free, "a signal handler sets it");

}  // namespace

void listen_for_save_requests(int signal) {
  if (signal == 0) return;
  static std::once_flag once;
  std::call_once(once, [signal] {
    struct sigaction action {};
    action.sa_handler = [](int) { requested = true; };
    action.sa_flags = SA_RESTART;
    sigaction(signal, &action, nullptr);
    sigset_t waiting;
    sigemptyset(&waiting);
    sigaddset(&waiting, signal);
    pthread_sigmask(SIG_UNBLOCK, &waiting, nullptr);
  });
}

bool save_was_requested() { return requested; }

}  // namespace ddprun
