// WorkerProcess: starting one worker.
//
// Boost.Process v2 forks and executes; our initializer makes the child what a worker must be: a
// session and process group of its own (as torchrun), killed by the kernel when its agent dies,
// with default signal handling and no open descriptor but its three streams. Called from the
// agent's main thread only: the kernel ties PR_SET_PDEATHSIG to the thread that forks.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/process/v2/process.hpp>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"

namespace ddprun {

struct WorkerStart {
  std::string executable;                                      // becomes argv[0]
  std::vector<std::string> arguments;                          // after argv[0]
  std::vector<std::pair<std::string, std::string>> variables;  // over this process's environment
  // What becomes stdout and stderr. The parent's copies stay its own to close.
  int out = -1;
  int err = -1;
};

using WorkerHandle = boost::process::v2::basic_process<boost::asio::io_context::executor_type>;

// The error's sys_errno says why, its `doing` which step failed.
Result<WorkerHandle> start_worker(boost::asio::io_context& io, const WorkerStart& start);

}  // namespace ddprun
