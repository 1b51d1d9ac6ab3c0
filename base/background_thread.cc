#include "base/background_thread.h"

#include <pthread.h>

#include <csignal>
#include <system_error>

namespace ddprun {

Result<void> start_thread(std::thread& thread, const std::string& name,
                          std::function<void()> body) {
  // The thread inherits the signal mask of the thread that starts it.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  int failed = 0;
  try {
    // The new thread sets its own name. Naming another thread goes through /proc. The kernel
    // would then have to search for this process's /proc entries when the process ends.
    thread = std::thread([name, body = std::move(body)] {
      pthread_setname_np(pthread_self(), name.c_str());
      body();
    });
  } catch (const std::system_error& error) {
    failed = error.code().value();
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (failed) return system_error("start thread " + name, failed);
  return {};
}

Result<void> start_detached_thread(const std::string& name, std::function<void()> body) {
  std::thread thread;
  Result<void> started = start_thread(thread, name, std::move(body));
  if (started) thread.detach();
  return started;
}

}  // namespace ddprun
