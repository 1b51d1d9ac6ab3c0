#include "rendezvous/core/worker_end.h"

#include "base/exit_codes.h"
#include "base/signal_names.h"

namespace ddprun {
namespace {

std::string subject(const WorkerEnd& end) {
  std::string text =
      "rank " + to_text(end.rank) + " (local rank " + to_text(end.local_rank) + " on " + end.host;
  if (end.pid > 0) text += ", pid " + std::to_string(end.pid);
  return text + ")";
}

}  // namespace

std::string describe(const WorkerEnd& end) {
  switch (end.kind) {
    case EndKind::kExited: return subject(end) + " exited with code " + std::to_string(end.code);
    case EndKind::kSignaled:
      return subject(end) + " was killed by " + signal_name(end.code) +
             (end.core_dumped ? " (core dumped)" : "");
    case EndKind::kNotStarted: return subject(end) + " could not be started: " + end.message;
    case EndKind::kNodeLost:
      return "node " + to_text(end.node_rank) + " (" + end.host + ") was lost: " + end.message;
  }
  return subject(end);
}

int exit_code_of(const WorkerEnd& end) {
  switch (end.kind) {
    case EndKind::kExited: return end.code;
    case EndKind::kSignaled: return 128 + end.code;
    case EndKind::kNotStarted: return to_int(ExitCode::kCannotStart);
    case EndKind::kNodeLost: return to_int(ExitCode::kNodeLost);
  }
  return to_int(ExitCode::kInternal);
}

bool is_likelier_cause(const WorkerEnd& left, const WorkerEnd& right) {
  if (left.after_stop != right.after_stop) return right.after_stop;
  if (left.age != right.age) return left.age > right.age;
  const auto weight = [](const WorkerEnd& end) {
    switch (end.kind) {
      case EndKind::kNotStarted: return 0;
      case EndKind::kNodeLost: return 1;
      case EndKind::kSignaled: return 2;
      case EndKind::kExited: return 3;
    }
    return 4;
  };
  if (weight(left) != weight(right)) return weight(left) < weight(right);
  return left.rank < right.rank;
}

}  // namespace ddprun
