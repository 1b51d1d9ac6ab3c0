#include "base/process_tree.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

namespace ddprun {
namespace {

// Starts a process that waits for a signal.
pid_t start_child() {
  const pid_t pid = fork();
  if (pid == 0) {
    while (true) pause();
  }
  return pid;
}

TEST(SignalDescendant, ReachesAChild) {
  const pid_t child = start_child();
  ASSERT_GT(child, 0);
  signal_descendant(child, SIGKILL);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(WTERMSIG(status), SIGKILL);
}

// The kernel may have given the process id to a process of another job after the snapshot.
TEST(SignalDescendant, LeavesAProcessAloneThatIsNotBelow) {
  const pid_t sibling = start_child();
  ASSERT_GT(sibling, 0);
  const pid_t other = fork();
  if (other == 0) {
    signal_descendant(sibling, SIGKILL);  // it is a child of this process's parent
    _exit(kill(sibling, 0) == 0 ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(other, &status, 0), other);
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_EQ(waitpid(sibling, &status, WNOHANG), 0) << "it still runs";
  kill(sibling, SIGKILL);
  waitpid(sibling, &status, 0);
}

}  // namespace
}  // namespace ddprun
