// WorkerEnd: describes how a worker, or a whole node, failed. Agents report it, the service judges
// it, and people read it. Exit code 0 is a failure only if other ranks still needed the worker.
//
// Value types and pure functions; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/enum_names.h"
#include "base/ids.h"

namespace ddprun {

enum class EndKind {
  kExited,      // code: exit code
  kSignaled,    // code: signal number
  kNotStarted,  // code: errno; message: which step failed
  kNodeLost,    // the node is gone; rank and pid have no meaning, message says how it was noticed
  // It keeps others waiting; message says for what (rendezvous/protocol/core/hang_analysis.h).
  kHung,
};

inline constexpr EnumNames<EndKind, 5> kEndKindWords{{{EndKind::kExited, "exited"},
                                                      {EndKind::kSignaled, "signaled"},
                                                      {EndKind::kNotStarted, "not_started"},
                                                      {EndKind::kNodeLost, "node_lost"},
                                                      {EndKind::kHung, "hung"}}};

// Why a node counts as lost.
enum class NodeLoss {
  kReported,      // its agent left, was cut off or did not return
  kLeaseExpired,  // the service heard nothing of it for its lease
  kUnfit,         // its node check failed before it started workers (--node-check)
};

inline constexpr EnumNames<NodeLoss, 3> kNodeLossWords{{{NodeLoss::kReported, "reported"},
                                                        {NodeLoss::kLeaseExpired, "lease_expired"},
                                                        {NodeLoss::kUnfit, "unfit"}}};

// Begins the message of a NodeLoss::kLeaseExpired.
inline constexpr std::string_view kSilentFor = "nothing was heard of it for ";

// Whether the kernel killed a worker because memory ran out. kLikely: it killed some process on
// that machine for this reason in the meantime. kSure: it killed this worker.
enum class OutOfMemory { kNo, kLikely, kSure };

inline constexpr EnumNames<OutOfMemory, 3> kOutOfMemoryWords{
    {{OutOfMemory::kNo, "no"}, {OutOfMemory::kLikely, "likely"}, {OutOfMemory::kSure, "sure"}}};

struct WorkerEnd {
  EndKind kind = EndKind::kExited;
  int code = 0;
  bool core_dumped = false;
  OutOfMemory out_of_memory = OutOfMemory::kNo;  // only for a SIGKILL
  // Killed by a signal that its agent was asked to send: `ddprun signal`, or SIGUSR1 to ddprun.
  bool on_request = false;
  // It crashed after its program had reported that it reached its end (WorkerPage::finished).
  // This is a failure, but no restart follows. False for every end that is not a crash.
  bool finished = false;
  // It ended after its agent had begun to stop the workers. Such an end is a victim. It is a cause
  // only if another end blames it and it is a crash (put_cause_first).
  bool after_stop = false;
  Rank rank{0};
  LocalRank local_rank{0};
  NodeRank node_rank{0};
  std::string host;  // empty only for kNodeLost of a separate rendezvous service
  int pid = 0;
  std::string message;                   // from its error file, or why it could not be started
  std::vector<std::string> frames = {};  // stack from its error file, the innermost last
  // The rank whose loss it gives as its reason; it is a victim of that rank. -1: none.
  int blames = -1;
  std::optional<std::int64_t> step = {};  // the last step that it reported; nullopt: none
  std::vector<std::string> stderr_tail;   // last lines, oldest first
  Duration age{0};                        // time between the end and the sending of this message
  // For a node that fell silent: its end was not observed. It may have been up to this much later
  // than `age` says.
  Duration unseen{0};
  NodeLoss loss = NodeLoss::kReported;  // only for kNodeLost

  friend bool operator==(const WorkerEnd&, const WorkerEnd&) = default;
};

// Returns whether it is the end of a worker's process.
inline bool is_of_process(const WorkerEnd& end) {
  return end.kind == EndKind::kExited || end.kind == EndKind::kSignaled;
}

// An end with its time, by the clock of the process that keeps it.
struct DatedEnd {
  WorkerEnd end;
  TimePoint when;

  // Returns the end with `age` as of `now`.
  WorkerEnd as_of(TimePoint now) const {
    WorkerEnd aged = end;
    aged.age = now - when;
    return aged;
  }
};

// Returns the kind as reports name it (docs/reference/verdicts.md): "exit_code", "exception",
// "out_of_memory", ...
const char* kind_word(const WorkerEnd& end);

// Returns a text like "rank 1 (local rank 1 on node0, pid 4711) was killed by SIGKILL".
std::string describe(const WorkerEnd& end);

// Returns the exit code of ddprun if this was the first failure. That is the worker's own code,
// 128+n for signal n, or one of ddprun's own codes (base/exit_codes.h).
int exit_code_of(const WorkerEnd& end);

// Returns true if `left` is the likelier cause. The order is:
// 1. Ends after the agent's stop come last.
// 2. Before them come ends that name another rank as their reason.
// 3. Otherwise the earlier end comes first, if the caller knows times.
// 4. At the same time a signal comes before an exit code, because a worker that sees its peer
//    die exits by itself.
bool is_likelier_cause(const WorkerEnd& left, const WorkerEnd& right);

// Puts the likeliest cause first. The ends are sorted by is_likelier_cause(). If the first end
// names another rank as its reason, that rank's end moves to the front, and so on. It must be in
// `ends`, and the stop must not have caused it.
void put_cause_first(std::vector<WorkerEnd>& ends);

// Returns true if one of the first `firsts` ends names the rank of `end` as its reason. `end` is
// then not their victim.
bool is_blamed(const WorkerEnd& end, const std::vector<WorkerEnd>& ends, std::size_t firsts);

// Returns how many ends at the front may each have been the first failure; 0 if there are none.
// The likeliest cause must be first. On one node the kernel's order decides. Between nodes the
// order is unknown within kSameTime, and between nodes that fell silent within
// WorkerEnd::unseen.
inline constexpr Duration kSameTime = std::chrono::milliseconds(20);
std::size_t count_possible_firsts(const std::vector<WorkerEnd>& ends);

// Limits for a message. A thousand workers may fail at once, each with a long report. A message
// has the kMaxEnds likeliest causes, and the kEndsInFull likeliest of them in full.
inline constexpr std::size_t kMaxEnds = 64;
inline constexpr std::size_t kEndsInFull = 8;
inline constexpr std::size_t kHostBytesShown = 256;
inline constexpr std::size_t kMaxMessageBytes = 2048;
inline constexpr std::size_t kMaxTailLines = 20;
inline constexpr std::size_t kMaxFrames = 12;
inline constexpr std::size_t kMaxTailLineBytes = 400;

// Calls put_cause_first(), keeps the first kMaxEnds ends and shortens them. Victims and all
// ends after the first kEndsInFull keep only one line of stderr and no stack. Returns how many
// ends were left out.
std::size_t keep_likeliest(std::vector<WorkerEnd>& ends);

// Returns the end within the limits of a message: texts as long as in a full report, and codes
// in their valid range.
WorkerEnd bounded(WorkerEnd end);

// Keeps the last `count` lines and clips each to kMaxTailLineBytes.
void keep_last_lines(std::vector<std::string>& lines, std::size_t count);

// Returns at most `bytes` of the text, cut between UTF-8 characters. "..." marks a cut.
std::string clipped(std::string text, std::size_t bytes);

}  // namespace ddprun
