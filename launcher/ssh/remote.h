// The far end of ssh: `ddprun ssh-node` on a host of the job. It reads its plan from standard input
// and starts the agent as a child process. It passes signals on to the agent, and ends it when the
// head is gone. Main thread only.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/host_port.h"
#include "base/result.h"
#include "base/unique_fd.h"

namespace ddprun {

// What the far end has prepared for its agent.
struct NodeJob {
  std::vector<std::string> arguments;  // of ddprun
  std::string key;                     // of the rendezvous; empty: the job has one node
  UniqueFd listener;                   // node 0 of several: listens at the endpoint; else invalid
  std::string address;                 // ... at which the other hosts reach node 0
};

// An agent that can be started.
struct NodeAgent {
  std::function<int()> run;  // returns its exit code
  Duration grace{};          // what it allows its workers to end
  std::string report_file;   // empty: none
};

// Runs the far end and returns its exit code, which is the agent's. prepare: checks the arguments
// and returns the agent, which runs in a child process. An error of `prepare` is reported to the
// head.
//
// The agent gets SIGTERM when standard input ends, or when nothing is heard of the head for
// kHeadPatience (protocol.h). It gets SIGKILL if it has not ended after its grace and some seconds.
int run_far_end(const std::function<Result<NodeAgent>(NodeJob job)>& prepare);

}  // namespace ddprun
