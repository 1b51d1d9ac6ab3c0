#include "launcher/agent/agent.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <fstream>

#include "base/pipe.h"
#include "base/process_tree.h"
#include "launcher/process/signal_source.h"
#include "tests/support/eventually.h"
#include "tests/support/read_file.h"
#include "tests/support/temporary_directory.h"

namespace ddprun {
namespace {

using testing_support::eventually;
using testing_support::TemporaryDirectory;

// RunningAgent: an agent without guardian and keeper, in its own process.
class RunningAgent {
 public:
  // said: the path of the file that gets the agent's stderr.
  RunningAgent(const AgentConfig& config, const std::string& said) {
    const pid_t test = getpid();
    pid_ = fork();
    if (pid_ != 0) return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    const UniqueFd file(open(said.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
    dup2(file.get(), STDERR_FILENO);
    become_subreaper();
    block_signals(config.signals);
    block_signals({SIGCHLD});
    UniqueFd again(dup(guard_.read.get()));
    _exit(run_agent(config, {std::move(guard_.read), std::move(again), test}));
  }
  ~RunningAgent() {
    if (!status_) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
  }

  pid_t pid() const { return pid_; }
  std::optional<int> wait() {
    int status = 0;
    if (eventually([&] { return waitpid(pid_, &status, WNOHANG) == pid_; })) status_ = status;
    return status_;
  }

 private:
  Pipe guard_ = make_pipe().value();
  pid_t pid_ = -1;
  std::optional<int> status_;
};

// The worker is a traced process that stops while it exits. SIGKILL does not end it then. This
// is the closest substitute for a process in an uninterruptible system call.
TEST(Agent, LeavesAWorkerThatCannotBeKilled) {
  const TemporaryDirectory directory;
  AgentConfig config;
  config.command = {"/bin/sh", {"-c", "echo $$ > " + directory / "pid" + "; exec sleep 1000"}};
  config.signals = {SIGTERM};
  config.options.grace = std::chrono::milliseconds(100);
  config.kill_timeout = std::chrono::milliseconds(200);
  RunningAgent agent(config, directory / "said");
  pid_t worker = -1;
  ASSERT_TRUE(eventually([&] { return std::ifstream(directory / "pid") >> worker && worker > 0; }));
  // The shell prints its pid before it becomes the program that the message must name.
  const std::string name_of_worker = "/proc/" + std::to_string(worker) + "/comm";
  ASSERT_TRUE(eventually([&] { return testing_support::read_file(name_of_worker) == "sleep\n"; }));
  if (ptrace(PTRACE_SEIZE, worker, nullptr, PTRACE_O_TRACEEXIT) != 0) {
    GTEST_SKIP() << "no process can be traced here: " << strerror(errno);
  }
  kill(agent.pid(), SIGTERM);
  const std::optional<int> status = agent.wait();
  EXPECT_TRUE(status) << "it waits for what will not end";
  std::ifstream said(directory / "said");
  const std::string text{std::istreambuf_iterator<char>(said), {}};
  EXPECT_NE(text.find("after SIGKILL pid " + std::to_string(worker) + " (sleep) is in state "),
            std::string::npos)
      << text;
  if (status) {
    EXPECT_TRUE(WIFEXITED(*status) && WEXITSTATUS(*status) == 70) << *status;
  }
  // The worker also stops before each signal. The last stop is that of its exit.
  while (waitpid(worker, nullptr, __WALL | WNOHANG) == worker) {
    ptrace(PTRACE_DETACH, worker, nullptr, nullptr);
  }
}

}  // namespace
}  // namespace ddprun
