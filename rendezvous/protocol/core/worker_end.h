// How a worker, or a whole node, ended other than with exit code 0: what agents report, what the
// service judges, what people read. Value types and pure functions; any thread.
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
  kNodeLost,    // the node is gone; rank and pid mean nothing, message says how it was noticed
  kHung,        // it kept the others waiting; message: for what (rendezvous/protocol/core/hang_analysis.h)
};

inline constexpr EnumNames<EndKind, 5> kEndKindWords{{{EndKind::kExited, "exited"},
                                                  {EndKind::kSignaled, "signaled"},
                                                  {EndKind::kNotStarted, "not_started"},
                                                  {EndKind::kNodeLost, "node_lost"},
                                                  {EndKind::kHung, "hung"}}};

// How the message of a kNodeLost begins where the lease ran out.
inline constexpr std::string_view kSilentFor = "nothing was heard of it for ";

// Whether the kernel ended a worker for want of memory: kLikely, where it did so to somebody on that
// machine meanwhile; kSure, where it was this one.
enum class OutOfMemory { kNo, kLikely, kSure };

inline constexpr EnumNames<OutOfMemory, 3> kOutOfMemoryWords{
    {{OutOfMemory::kNo, "no"}, {OutOfMemory::kLikely, "likely"}, {OutOfMemory::kSure, "sure"}}};

struct WorkerEnd {
  EndKind kind = EndKind::kExited;
  int code = 0;
  bool core_dumped = false;
  OutOfMemory out_of_memory = OutOfMemory::kNo;  // of a SIGKILL
  // Killed by a signal that its agent was asked to send it: `ddprun signal`, or SIGUSR1 to ddprun.
  bool on_request = false;
  // It crashed after its program had said that it reached its end (WorkerPage::finished). This is a
  // failure, but no restart follows. False for every end that is not a crash.
  bool finished = false;
  // Ended after its agent had begun to stop the workers: a victim, never the cause.
  bool after_stop = false;
  Rank rank{0};
  LocalRank local_rank{0};
  NodeRank node_rank{0};
  std::string host;  // empty only for kNodeLost of a separate rendezvous service
  int pid = 0;
  std::string message;                   // of its error file, or why it could not be started
  std::vector<std::string> frames = {};  // where, by its error file: the innermost last
  // The rank whose loss it names as its reason, and which it is therefore a victim of; -1: none.
  int blames = -1;
  std::optional<std::int64_t> step = {};  // the last one that it had reported; nullopt: none
  std::vector<std::string> stderr_tail;   // last lines, oldest first
  Duration age{0};                        // time between the end and the sending of this message
  // Nobody saw it: it may have been by so much later than `age` says. Of a node that fell silent.
  Duration unseen{0};

  friend bool operator==(const WorkerEnd&, const WorkerEnd&) = default;
};

// An end, and when it was by the clock of whoever keeps it.
struct DatedEnd {
  WorkerEnd end;
  TimePoint when;

  // As it is told now.
  WorkerEnd as_of(TimePoint now) const {
    WorkerEnd told = end;
    told.age = now - when;
    return told;
  }
};

// What it was, in the words of reports (docs/verdicts.md): "exit_code", "exception", "out_of_memory", ...
const char* kind_word(const WorkerEnd& end);

// "rank 1 (local rank 1 on node0, pid 4711) was killed by SIGKILL".
std::string describe(const WorkerEnd& end);

// What ddprun ends with when this was the first failure: the worker's own code, 128+n for signal n,
// or one of ddprun's own (base/exit_codes.h).
int exit_code_of(const WorkerEnd& end);

// True if `left` is the likelier cause. Ends that followed the agent's stop come last, before them those
// that name another rank as their reason; then the earlier one, where the caller knows times; on
// the same instant a signal beats an exit code, because a worker that sees its peer die exits by
// itself.
bool is_likelier_cause(const WorkerEnd& left, const WorkerEnd& right);

// Puts the likeliest cause first: is_likelier_cause() orders; where the first one names another rank as
// its reason, and that one's end is here and its own doing, the other one comes first, and so on.
void put_cause_first(std::vector<WorkerEnd>& ends);

// Whether one of the first `firsts` ends names this one's rank as its reason: their victim it is not.
bool is_blamed(const WorkerEnd& end, const std::vector<WorkerEnd>& ends, std::size_t firsts);

// How many ends at the front, the likeliest cause first, may each have been the first failure: on one
// node the kernel's order tells, between nodes nothing does within kSameTime, between nodes that fell
// silent nothing does within WorkerEnd::unseen. 0 for none.
inline constexpr Duration kSameTime = std::chrono::milliseconds(20);
std::size_t count_possible_firsts(const std::vector<WorkerEnd>& ends);

// A thousand workers may fail at once, each with much to say; a message has a bound. It tells of
// the likeliest causes, and in full of the likeliest of these.
inline constexpr std::size_t kEndsTold = 64;
inline constexpr std::size_t kEndsInFull = 8;
inline constexpr std::size_t kHostBytesShown = 256;
inline constexpr std::size_t kMaxMessageBytes = 2048;
inline constexpr std::size_t kMaxTailLines = 20;
inline constexpr std::size_t kMaxFrames = 12;
inline constexpr std::size_t kMaxTailLineBytes = 400;

// Calls put_cause_first(), keeps kEndsTold of them and shortens what they say: victims and
// those behind the first kEndsInFull lose their last lines of stderr. Returns how many were left
// out.
std::size_t keep_likeliest(std::vector<WorkerEnd>& ends);

// The end with nothing in it that a message could not hold: texts as in a full telling, codes that
// there are.
WorkerEnd bounded(WorkerEnd end);

// The last `count` of them, each of kMaxTailLineBytes at most.
void keep_last_lines(std::vector<std::string>& lines, std::size_t count);

// At most `bytes` of the text, cut between characters; "..." stands for what was cut off.
std::string clipped(std::string text, std::size_t bytes);

}  // namespace ddprun
