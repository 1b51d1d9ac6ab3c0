// How a worker, or a whole node, ended other than with exit code 0: what agents report, what the
// service judges, what people read. Value types and pure functions; any thread.
#pragma once

#include <string>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"

namespace ddprun {

enum class EndKind {
  kExited,      // code: exit code
  kSignaled,    // code: signal number
  kNotStarted,  // code: errno; message: which step failed
  kNodeLost,    // the node is gone; rank and pid mean nothing, message says how it was noticed
};

struct WorkerEnd {
  EndKind kind = EndKind::kExited;
  int code = 0;
  bool core_dumped = false;
  // Ended after its agent had begun to stop the workers: a victim, never the cause.
  bool after_stop = false;
  Rank rank{0};
  LocalRank local_rank{0};
  NodeRank node_rank{0};
  std::string host;
  int pid = 0;
  std::string message;                   // of its error file, or why it could not be started
  std::vector<std::string> stderr_tail;  // last lines, oldest first
  Duration age{0};                       // time between the end and the sending of this message

  friend bool operator==(const WorkerEnd&, const WorkerEnd&) = default;
};

// "rank 1 (local rank 1 on node0, pid 4711) was killed by SIGKILL".
std::string describe(const WorkerEnd& end);

// What ddprun ends with when this was the first failure: the worker's own code, 128+n for signal n,
// or one of ddprun's own (base/exit_codes.h).
int exit_code_of(const WorkerEnd& end);

// True if `left` is the likelier cause. Ends that followed the agent's stop come last; then the
// earlier one, where the caller knows times; on the same instant a signal beats an exit code,
// because a worker that sees its peer die exits by itself.
bool is_likelier_cause(const WorkerEnd& left, const WorkerEnd& right);

}  // namespace ddprun
