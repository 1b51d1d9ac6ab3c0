// WorkerProcess: one worker's process, from its start until it has been reaped or let go.
//
// Boost.Process v2 with a launcher and an initializer of our own. The launcher makes the process
// without a copy of the agent's memory (launcher/worker/shared_clone.h); Boost's forks. The initializer
// makes of it what a worker must be: a session and process group of its own (as torchrun), killed by
// the kernel when its agent dies, with default signal handling (what nohup or a shell in the
// background ignores stays ignored: SIGHUP, SIGINT, SIGQUIT), the descriptor limit that ddprun
// itself was started with, its working directory and file mask, and no open descriptor but its three
// streams. Called from the agent's main thread only: the kernel ties PR_SET_PDEATHSIG to the thread
// that forks.
#pragma once

#include <sys/resource.h>
#include <sys/types.h>

#include <boost/asio/io_context.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"
#include "launcher/machine/core/cpu_set.h"

namespace ddprun {

struct WorkerStart {
  std::string executable;                                      // becomes argv[0]
  std::vector<std::string> arguments;                          // after argv[0]
  std::vector<std::pair<std::string, std::string>> variables;  // over this process's environment
  // What becomes stdin (-1: /dev/null), stdout and stderr. The parent's copies stay its own to close.
  int in = -1;
  int out = -1;
  int err = -1;
  CpuSet cpus;                // that it may run on; empty: this process's own
  bool has_terminal = false;  // stdout is one, and becomes the worker's controlling terminal
  std::optional<rlimit> descriptor_limit;  // nullopt: this process's own
  std::string directory;                   // --chdir; empty: this process's own
  std::optional<mode_t> file_mask;         // --umask; nullopt: this process's own
  int blocked_signal = 0;                  // that it begins with blocked; 0: none
  int oom_score_raise =
      0;  // over this process's own: the kernel ends it first where memory is short
  int cgroup = -1;                         // directory of its control group; -1: this process's own
};

class WorkerProcess {
 public:
  // The error's sys_errno says why, its `doing` which step failed ("exec ./train", "chdir /data"),
  // its cause what would be right. A process that failed before exec has been reaped.
  static Result<WorkerProcess> start(boost::asio::io_context& io, const WorkerStart& start);

  // Lets go of a process that has not ended: it is neither killed nor waited for, because one that
  // cannot be killed would stop the agent as well.
  ~WorkerProcess();
  WorkerProcess(WorkerProcess&&) noexcept = default;

  pid_t id() const;

  // Calls `then` once, from the io_context, when the process has ended and has been reaped, with
  // its status as wait(2) gives it; never once this object is gone.
  void when_ended(std::function<void(int wait_status)> then);

 private:
  struct State;
  explicit WorkerProcess(std::shared_ptr<State> state);
  std::shared_ptr<State> state_;
};

}  // namespace ddprun
