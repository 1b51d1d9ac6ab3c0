#include "rendezvous/protocol/core/worker_end.h"

#include <algorithm>
#include <array>
#include <csignal>

#include "base/concat.h"
#include "base/exit_codes.h"
#include "base/signal_names.h"

namespace ddprun {
namespace {

std::string subject(const WorkerEnd& end) {
  std::string text = concat("rank ", end.rank, " (local rank ", end.local_rank, " on ", end.host);
  if (end.pid > 0) text += concat(", pid ", end.pid);
  return text + ")";
}

std::string want_of_memory(OutOfMemory evidence) {
  switch (evidence) {
    case OutOfMemory::kNo: return "";
    case OutOfMemory::kLikely:
      return ", probably for want of memory (the kernel killed a process for that meanwhile)";
    case OutOfMemory::kSure:
      return " for want of memory (out-of-memory kill, counted in its control group)";
  }
  return "";
}

constexpr int kMaxErrno = 4095;                  // Linux's MAX_ERRNO
constexpr std::size_t kShortMessageBytes = 200;  // for an end that is not reported in full

std::string blame_text(const WorkerEnd& end) {
  return end.blames < 0 ? "" : concat(" and blames rank ", end.blames);
}

// Returns true if the stop did not cause the end. After the stop, only a crash is the worker's
// own: writing its core may have taken seconds, while its peers had ended already.
bool is_own_doing(const WorkerEnd& end) {
  if (!end.after_stop) return true;
  constexpr std::array kEnding{SIGTERM, SIGKILL, SIGINT, SIGHUP, SIGQUIT};
  const bool is_crash = std::ranges::find(kEnding, end.code) == kEnding.end();
  return end.kind == EndKind::kSignaled && (is_crash || end.out_of_memory != OutOfMemory::kNo);
}

enum class Extent { kFull, kShort };

void shorten(WorkerEnd& end, Extent extent) {
  end.host = clipped(std::move(end.host), kHostBytesShown);
  const bool full = extent == Extent::kFull;
  end.message = clipped(std::move(end.message), full ? kMaxMessageBytes : kShortMessageBytes);
  if (!full) end.frames.clear();
  keep_last_lines(end.frames, kMaxFrames);
  keep_last_lines(end.stderr_tail, full ? kMaxTailLines : 1);
  // The last line tells whether this worker raised what the first one raised, even without an
  // error file.
  if (!full && !end.stderr_tail.empty()) {
    end.stderr_tail.back() = clipped(std::move(end.stderr_tail.back()), kShortMessageBytes);
  }
}

}  // namespace

const char* kind_word(const WorkerEnd& end) {
  switch (end.kind) {
    case EndKind::kExited: return end.message.empty() ? "exit_code" : "exception";
    case EndKind::kSignaled:
      return end.out_of_memory == OutOfMemory::kNo ? "signal" : "out_of_memory";
    case EndKind::kNotStarted: return "start_failure";
    case EndKind::kNodeLost:
      if (end.loss == NodeLoss::kUnfit) return "node_unfit";
      return end.loss == NodeLoss::kLeaseExpired ? "lease_lost" : "node_lost";
    case EndKind::kHung: return "hang";
  }
  return "unknown";
}

std::string describe(const WorkerEnd& end) {
  using enum EndKind;
  switch (end.kind) {
    case kExited:
      return concat(subject(end), " exited with code ", end.code, blame_text(end),
                    end.code == 0 ? " while other ranks still needed it" : "");
    case kSignaled:
      return subject(end) + " was killed by " + signal_name(end.code) +
             (end.core_dumped ? " (core dumped)" : "") + want_of_memory(end.out_of_memory) +
             (end.on_request ? ", which ddprun sent on request" : "") + blame_text(end) +
             (end.finished ? " after its Context had been destroyed in good order" : "");
    case kNotStarted: return subject(end) + " could not be started: " + end.message;
    case kNodeLost:
      if (end.host.empty()) return end.message;
      return concat("node ", end.node_rank, " (", end.host, ") ",
                    end.loss == NodeLoss::kUnfit ? "is not fit: " : "was lost: ", end.message);
    case kHung: return subject(end) + " hangs: " + end.message;
  }
  return subject(end);
}

int exit_code_of(const WorkerEnd& end) {
  using enum EndKind;
  switch (end.kind) {
    case kExited: return end.code;
    case kSignaled: return exit_code_of_signal(end.code);
    case kNotStarted: return to_int(ExitCode::kCannotStart);
    case kNodeLost: return to_int(ExitCode::kNodeLost);
    case kHung: return to_int(ExitCode::kHung);
  }
  return to_int(ExitCode::kInternal);
}

bool is_likelier_cause(const WorkerEnd& left, const WorkerEnd& right) {
  using enum EndKind;
  if (left.after_stop != right.after_stop) return right.after_stop;
  if ((left.blames < 0) != (right.blames < 0)) return left.blames < 0;
  if (left.age != right.age) return left.age > right.age;
  const auto weight = [](const WorkerEnd& end) {
    switch (end.kind) {
      case kNotStarted: return 0;
      case kNodeLost: return 1;
      case kHung: return 2;
      case kSignaled: return 3;
      case kExited: return 4;
    }
    return 5;
  };
  if (weight(left) != weight(right)) return weight(left) < weight(right);
  return left.rank < right.rank;
}

void put_cause_first(std::vector<WorkerEnd>& ends) {
  std::ranges::stable_sort(ends, is_likelier_cause);
  std::vector<int> accusers;
  auto at = ends.begin();
  while (at != ends.end() && at->blames >= 0) {
    accusers.push_back(at->rank.value);
    const auto blamed = std::ranges::find_if(ends, [&](const WorkerEnd& end) {
      return end.kind != EndKind::kNodeLost && end.rank.value == at->blames;
    });
    if (blamed == ends.end() || !is_own_doing(*blamed)) break;
    const bool in_a_circle = std::ranges::count(accusers, at->blames) > 0;
    if (in_a_circle) return;
    at = blamed;
  }
  if (at != ends.end()) std::rotate(ends.begin(), at, at + 1);
}

bool is_blamed(const WorkerEnd& end, const std::vector<WorkerEnd>& ends, std::size_t firsts) {
  if (end.kind == EndKind::kNodeLost) return false;
  const auto last = ends.begin() + static_cast<std::ptrdiff_t>(std::min(firsts, ends.size()));
  return std::any_of(ends.begin(), last,
                     [&](const WorkerEnd& first) { return first.blames == end.rank.value; });
}

std::size_t count_possible_firsts(const std::vector<WorkerEnd>& ends) {
  if (ends.empty()) return 0;
  const WorkerEnd& first = ends.front();
  const auto none = std::find_if(ends.begin() + 1, ends.end(), [&](const WorkerEnd& end) {
    if (end.after_stop != first.after_stop || (end.blames < 0) != (first.blames < 0)) return true;
    if (end.blames == first.rank.value && first.kind != EndKind::kNodeLost) return true;
    const bool is_lost = end.kind == EndKind::kNodeLost;
    if (is_lost != (first.kind == EndKind::kNodeLost)) return true;
    if (is_lost) return first.age - end.age > std::max(first.unseen, kSameTime);
    if (end.node_rank == first.node_rank) return end.age != first.age || end.kind != first.kind;
    return first.age - end.age > kSameTime;
  });
  return static_cast<std::size_t>(none - ends.begin());
}

std::size_t keep_likeliest(std::vector<WorkerEnd>& ends) {
  put_cause_first(ends);
  const std::size_t kept = std::min(ends.size(), kMaxEnds);
  const std::size_t left_out = ends.size() - kept;
  ends.resize(kept);
  for (std::size_t i = 0; i < kept; ++i) {
    const bool in_full = i == 0 || (i < kEndsInFull && !ends[i].after_stop);
    shorten(ends[i], in_full ? Extent::kFull : Extent::kShort);
  }
  return left_out;
}

WorkerEnd bounded(WorkerEnd end) {
  shorten(end, Extent::kFull);
  end.code = std::clamp(end.code, 0, end.kind == EndKind::kNotStarted ? kMaxErrno : 255);
  return end;
}

void keep_last_lines(std::vector<std::string>& lines, std::size_t count) {
  if (lines.size() > count)
    lines.erase(lines.begin(), lines.end() - static_cast<std::ptrdiff_t>(count));
  for (std::string& line : lines) line = clipped(std::move(line), kMaxTailLineBytes);
}

std::string clipped(std::string text, std::size_t bytes) {
  constexpr std::string_view kCut = "...";
  if (text.size() <= bytes) return text;
  std::size_t length = bytes > kCut.size() ? bytes - kCut.size() : 0;
  const auto is_inside = [&](std::size_t at) {
    return (static_cast<unsigned char>(text[at]) & 0xc0) == 0x80;
  };
  while (length > 0 && is_inside(length)) --length;
  text.resize(length);
  return text.append(kCut);
}

}  // namespace ddprun
