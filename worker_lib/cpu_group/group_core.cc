#include "worker_lib/cpu_group/group_core.h"

#include <algorithm>
#include <limits>
#include <span>

#include "base/assert.h"
#include "base/flight_words.h"
#include "base/poll_until.h"
#include "worker_lib/collective/group_end.h"
#include "worker_lib/collective/rank_names.h"

namespace ddprun {
namespace {

// An error describes the state of at most this many of the ranks that did not come.
constexpr int kMostNamed = 3;
// The wait lasts this long only if there is no report about a linked rank. Answers are slow when
// cores are overloaded.
constexpr Duration kAskPatience = std::chrono::milliseconds(500);
constexpr Duration kNewsPatience = std::chrono::milliseconds(500);
constexpr Duration kNewsInterval = std::chrono::milliseconds(1);

// Returns ". rank 3: it has been in ..." for the first ranks that count.
template <class Counts>
std::string whereabouts_of(std::span<const RankProgress> ranks, Counts counts) {
  std::string text;
  int named = 0;
  for (const RankProgress& one : ranks) {
    if (one.whereabouts.empty() || !counts(one)) continue;
    if (++named > kMostNamed) break;
    text += ". " + name_rank(one.rank) + ": " + one.whereabouts;
  }
  return text;
}

}  // namespace

Result<std::unique_ptr<GroupCore>> GroupCore::create(GroupParts parts) {
  std::unique_ptr<GroupCore> core(new GroupCore(std::move(parts)));
  Result<std::unique_ptr<PeerWatch>> watch =
      PeerWatch::start(core->progress_, core->wakeups(), std::move(core->parts_.watch));
  if (!watch) return watch.error();
  core->watch_ = std::move(*watch);
  return core;
}

GroupCore::GroupCore(GroupParts parts)
    : parts_(std::move(parts)),
      progress_(parts_.segment->at(parts_.here.segment.progress), parts_.here.local_count(),
                parts_.here.local, parts_.spin) {
  parts_.here.memory = parts_.segment->at(0);
  parts_.here.progress = &progress_;
  if (!parts_.data_sockets.empty()) {
    mesh_ = std::make_unique<TcpMesh>(std::move(parts_.data_sockets), progress_, parts_.spin);
    parts_.here.mesh = mesh_.get();
  }
}

GroupCore::~GroupCore() {
  if (watch_) watch_->leave();
}

Result<void> GroupCore::may_begin(const OperationContext& attempt) {
  {
    const std::lock_guard lock(finishing_);
    if (finished_) return group_finished(attempt.doing() + here().title, *finished_);
  }
  if (progress_.failed()) return error_of_failure(attempt);
  return {};
}

Error GroupCore::fail(const OperationContext& attempt, WaitEnd end, int node) {
  if (end == WaitEnd::kTimedOut) raise_timeout(attempt);
  if (end == WaitEnd::kLeft) raise_departure(attempt, node);
  return error_of_failure(attempt);
}

Error GroupCore::fail(const OperationContext& attempt, ErrorKind kind, int peer_rank,
                      const std::string& cause) {
  raise(kind, peer_rank, cause);
  return error_of_failure(attempt);
}

std::string GroupCore::origins_of_calls() {
  return whereabouts_of(watch_->query_progress(kAskPatience).progress, [](const RankProgress& one) {
    return one.whereabouts.find(kCalledFrom) != std::string::npos;
  });
}

std::vector<int> GroupCore::ranks_at_work() const {
  std::vector<int> at_work;
  for (int local = 0; local < here().local_count(); ++local) {
    if (local == here().local || !progress_.is_at_work(local) || watch_->has_ended(local)) continue;
    at_work.push_back(local);
  }
  return at_work;
}

std::vector<int> GroupCore::ranks_ahead(Duration patience) {
  std::vector<int> ahead;
  const std::uint64_t own = progress_.entered(here().local);
  for (const RankProgress& one : watch_->query_progress(patience).progress) {
    if (one.entered > own) ahead.push_back(one.rank);
  }
  return ahead;
}

void GroupCore::raise(ErrorKind kind, int peer_rank, const std::string& cause) {
  watch_->raise_failure(
      {.kind = kind, .peer_rank = peer_rank, .reporter = here().rank, .cause = cause});
}

std::optional<Error> GroupCore::failure() const {
  const std::optional<GroupFailure> failure = progress_.failure();
  if (!failure) return std::nullopt;
  return Error{.kind = failure->kind, .cause = failure->cause, .peer_rank = failure->peer_rank};
}

// Returns the group's first failure, so that every rank reports the same one. It is not always
// the failure that this rank saw.
Error GroupCore::error_of_failure(const OperationContext& attempt) {
  watch_->forward_failure();
  const GroupFailure failure = *progress_.failure();
  const bool own = failure.reporter == here().rank;
  Error error{.kind = failure.kind,
              .doing = attempt.doing() + here().title,
              .cause = failure.cause,
              .peer_rank = failure.peer_rank};
  if (failure.kind == ErrorKind::kTimeout && own) {
    error.waited = attempt.deadline.waited();
    error.allowed = attempt.deadline.allowed();
  } else if (failure.kind == ErrorKind::kTimeout) {
    error.cause = name_rank(failure.reporter) + " gave up: " + failure.cause;
  } else if (failure.kind == ErrorKind::kStopped) {
    error.cause = own ? group_aborted(failure.cause)
                      : name_rank(failure.reporter) + " aborted the group: " + failure.cause;
  }
  const std::lock_guard lock(finishing_);
  if (!finished_) finished_ = error;
  return error;
}

// The cause is about the ranks that the operation waits for. Ticks count the same steps on all
// ranks of the world, so the lowest tick shows the slowest ranks.
//
// Stopped and silent ranks are blamed first. A rank that did not arrive, or did not send, may
// itself wait for such a rank in an earlier call.
void GroupCore::raise_timeout(const OperationContext& attempt) {
  const bool is_message = !attempt.omission.empty();
  const PeerWatch::ProgressReport report = watch_->query_progress(kAskPatience);
  std::vector<int> present, absent, stopped, behind;
  std::uint64_t lowest = std::numeric_limits<std::uint64_t>::max();
  for (const RankProgress& one : report.progress) {
    (one.entered < attempt.round ? absent : present).push_back(one.rank);
    if (one.rank == here().rank) continue;
    if (one.stopped) stopped.push_back(one.rank);
    if (one.tick < lowest) behind.clear();
    lowest = std::min(lowest, one.tick);
    if (one.tick == lowest) behind.push_back(one.rank);
  }
  if (is_message || !absent.empty() || !stopped.empty() || !report.silent.empty()) behind.clear();

  int first = -1;  // the rank to blame
  const auto blame = [&](std::span<const int> ranks) {
    if (first >= 0 || ranks.empty()) return;
    first = std::ranges::count(ranks, attempt.partner) > 0 ? attempt.partner : ranks.front();
  };
  blame(stopped);
  blame(report.silent);
  if (first < 0) first = attempt.partner;
  blame(absent);
  blame(behind);

  std::string text;
  if (is_message) text = attempt.omission;
  if (is_message && attempt.partner >= 0) text = name_rank(attempt.partner) + " " + text;
  const auto add = [&](std::span<const int> ranks, const char* one, const char* many) {
    if (ranks.empty()) return;
    text += (text.empty() ? "" : "; ") + name_ranks(ranks) + (ranks.size() == 1 ? one : many);
  };
  add(absent, " did not arrive", " did not arrive");
  add(stopped, " is stopped (by a signal or a debugger)",
      " are stopped (by a signal or a debugger)");
  add(report.silent, " does not answer", " do not answer");
  add(behind, " halted in it", " halted in it");
  if (!absent.empty()) add(present, " is there", " are there");
  if (!absent.empty() && parts_.explain_absence) {
    const std::string known = parts_.explain_absence(absent);
    if (!known.empty()) text += "; " + known;
  }
  text += whereabouts_of(report.progress, [&](const RankProgress& one) {
    if (one.rank == here().rank) return false;
    return is_message ? one.rank == attempt.partner : one.entered < attempt.round;
  });
  raise(ErrorKind::kTimeout, first, text);
}

// A broken connection is mostly the consequence of a failure that the watch is about to learn
// of.
bool GroupCore::await_news(int peer) const {
  const Deadline patience(kNewsPatience);
  while (!progress_.failed() && !watch_->has_left(peer) && !patience.passed()) {
    poll_until({}, BootClock::now() + kNewsInterval);
  }
  return watch_->has_left(peer);
}

void GroupCore::raise_departure(const OperationContext& attempt, int node) {
  const GroupTopology& at = here();
  if (node < 0) {
    int gone = -1;
    for (int local = 0; local < at.local_count(); ++local) {
      const bool counts = attempt.partner < 0 || at.layout.nodes[at.node][local] == attempt.partner;
      if (!counts || !progress_.has_left(local)) continue;
      if (gone < 0 || progress_.tick(local) < progress_.tick(gone)) gone = local;
    }
    DDPRUN_ASSERT(gone >= 0, "a wait ends with kLeft only when a rank has left");
    const int rank = at.layout.nodes[at.node][gone];
    return raise(ErrorKind::kPeerLost, rank, name_rank(rank) + " has left the group");
  }
  const int peer = attempt.partner < 0 ? at.layout.lane_leader(at.local, node) : attempt.partner;
  raise(ErrorKind::kPeerLost, peer,
        name_rank(peer) + (await_news(peer) ? " has left the group" : " closed its connection"));
}

}  // namespace ddprun
