// If the scheduler started several tasks on a node, the ddprun of local task 0 is the agent of the
// node. The others wait for it and end with its exit code.
//
// They meet at an abstract Unix socket, named after the user and the job. The agent listens from
// its start and tells its exit code at its end. One thread.
#pragma once

#include <string>

#include "base/clock.h"
#include "base/result.h"
#include "base/unique_fd.h"

namespace ddprun {

class LocalTasks {
 public:
  // Listens for `others` tasks of the job. kSystem: another process has the name.
  static Result<LocalTasks> listen(const std::string& job_id, int others);
  // Tells the exit code to all others. Waits at most 10 s for those that have not come yet.
  void end(int exit_code);

 private:
  LocalTasks(UniqueFd listener, int others) : listener_(std::move(listener)), others_(others) {}

  UniqueFd listener_;
  int others_;
};

// Waits until the agent of this node ends, and returns its exit code. Signals do not end the wait:
// the scheduler sends them to the agent, too. kTimeout: no agent came within `patience`.
// kConnection: the agent was killed.
Result<int> wait_for_agent(const std::string& job_id, Duration patience);

}  // namespace ddprun
