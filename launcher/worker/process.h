// WorkerProcess: the process of one worker, from its start until it is reaped or released.
//
// It uses Boost.Process v2 with a launcher and an initializer of its own. The launcher creates
// the process without a copy of the agent's memory (launcher/worker/shared_clone.h); Boost's
// launcher forks. The initializer prepares the process:
//   - It has a session and process group of its own (as with torchrun).
//   - The kernel kills it when its agent dies.
//   - Its signal handling is the default. SIGHUP, SIGINT and SIGQUIT stay ignored if they were
//     (nohup, a shell in the background).
//   - It has the descriptor limit that ddprun was started with.
//   - It has its working directory and file mask.
//   - It has no open descriptors but its three streams.
//
// Call from the agent's main thread only: the kernel ties PR_SET_PDEATHSIG to the thread that
// forks.
#pragma once

#include <sys/resource.h>
#include <sys/types.h>

#include <boost/asio/io_context.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/result.h"
#include "base/unique_fd.h"
#include "launcher/options/core/launch_options.h"
#include "launcher/plan/core/worker_plan.h"

namespace ddprun {

struct WorkerStart {
  const std::string& executable;  // becomes argv[0]
  const WorkerPlan& plan;         // its arguments, variables (override this process's own) and CPUs
  // With --pty, stdout is a terminal; it becomes the controlling terminal. The signal for
  // checkpoints is blocked when the program starts.
  const LaunchOptions& options;
  // Descriptors that become stdin (-1: /dev/null), stdout and stderr. The caller closes its
  // copies.
  int in = -1;
  int out = -1;
  int err = -1;
  std::optional<rlimit> descriptor_limit = {};  // nullopt: as this process
  int cgroup = -1;  // its control group's directory; -1: as this process
};

class WorkerProcess {
 public:
  // Starts a process. In the error, sys_errno says why, `doing` names the step that failed
  // ("exec ./train", "chdir /data"), and `cause` says what would be right. A process that failed
  // before exec is already reaped.
  static Result<WorkerProcess> start(boost::asio::io_context& io, const WorkerStart& start);

  // Releases a process that has not ended. It is neither killed nor waited for, because a
  // process that cannot be killed would block the agent.
  ~WorkerProcess();
  WorkerProcess(WorkerProcess&&) noexcept = default;

  pid_t id() const;

  // Calls `then` once, from the io_context, when the process has ended and has been reaped.
  // Passes its status as wait(2) returns it. Does not call `then` once this object is destroyed.
  void when_ended(std::function<void(int wait_status)> then);

 private:
  struct State;
  explicit WorkerProcess(std::shared_ptr<State> state);
  std::shared_ptr<State> state_;
};

}  // namespace ddprun
