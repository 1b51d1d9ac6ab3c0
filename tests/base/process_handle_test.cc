#include "base/process_handle.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <fstream>

namespace ddprun {
namespace {

// Starts a process that waits for a signal.
pid_t start_waiting_child() {
  const pid_t pid = fork();
  if (pid == 0) {
    while (true) pause();
  }
  return pid;
}

int status_after_sigterm(const ProcessHandle& handle, pid_t child) {
  handle.signal(SIGTERM);
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return status;
}

TEST(ProcessHandle, SignalsItsProcess) {
  const pid_t child = start_waiting_child();
  ASSERT_GT(child, 0);
  EXPECT_EQ(WTERMSIG(status_after_sigterm(ProcessHandle(child, getpid()), child)), SIGTERM);
}

TEST(ProcessHandle, OfAProcessWithAnotherParentSignalsNothing) {
  const pid_t child = start_waiting_child();
  ASSERT_GT(child, 0);
  ProcessHandle(child, getppid()).signal(SIGKILL);
  EXPECT_EQ(WTERMSIG(status_after_sigterm(ProcessHandle(child, getpid()), child)), SIGTERM);
}

// The kernel is told which pid to use next, which needs rights that a container may lack.
TEST(ProcessHandle, LeavesAProcessAloneThatHasThePidOfOneThatEnded) {
  constexpr int kTries = 100;  // another process may take the pid
  for (int i = 0; i < kTries; ++i) {
    const pid_t first = start_waiting_child();
    ASSERT_GT(first, 0);
    const ProcessHandle handle(first, getpid());
    kill(first, SIGKILL);
    ASSERT_EQ(waitpid(first, nullptr, 0), first);
    std::ofstream last("/proc/sys/kernel/ns_last_pid");
    if (!(last << first - 1 << std::flush)) GTEST_SKIP() << "ns_last_pid cannot be written";
    const pid_t second = start_waiting_child();
    ASSERT_GT(second, 0);
    handle.signal(SIGKILL);
    const int status = status_after_sigterm(ProcessHandle(second, getpid()), second);
    if (second != first) continue;
    EXPECT_EQ(WTERMSIG(status), SIGTERM);
    return;
  }
  GTEST_SKIP() << "other processes took the pid each time";
}

}  // namespace
}  // namespace ddprun
