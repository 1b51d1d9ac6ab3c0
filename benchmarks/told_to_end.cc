// A worker for launch_cost.py: prints its pid, and the time when it is told to end.
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>

int main() {
  sigset_t asked;
  sigemptyset(&asked);
  sigaddset(&asked, SIGTERM);
  sigprocmask(SIG_BLOCK, &asked, nullptr);
  std::printf("pid %d\n", static_cast<int>(getpid()));
  std::fflush(stdout);
  int signal = 0;
  sigwait(&asked, &signal);
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  std::printf("at %.6f\n", std::chrono::duration<double>(now).count());
}
