#include "worker_lib/cpu_group/group_core.h"

#include <algorithm>
#include <limits>
#include <map>
#include <set>

#include "base/assert.h"
#include "base/flight_words.h"
#include "base/poll_until.h"
#include "worker_lib/collective/rank_names.h"
#include "worker_lib/cpu_group/group_end.h"

namespace ddprun {
namespace {

// An error describes the state of at most this many of the ranks that did not come.
constexpr int kMostTold = 3;
// The wait lasts this long only if there is no report about a linked rank. Answers are slow when
// cores are overloaded.
constexpr Duration kAskPatience = std::chrono::milliseconds(500);
constexpr Duration kNewsPatience = std::chrono::milliseconds(500);
constexpr Duration kNewsInterval = std::chrono::milliseconds(1);

}  // namespace

Result<std::unique_ptr<GroupCore>> GroupCore::create(GroupParts parts) {
  std::unique_ptr<GroupCore> core(new GroupCore(std::move(parts)));
  const GroupTopology& here = core->here();
  Result<std::unique_ptr<PeerWatch>> watch =
      PeerWatch::start(core->progress_, core->wakeups(),
                       {.rank = here.rank,
                        .world_size = here.layout.world_size(),
                        .node_ranks = here.layout.nodes[here.node],
                        .lives = std::move(core->parts_.lives),
                        .pages = std::move(core->parts_.pages),
                        .links = std::move(core->parts_.links),
                        .node_silence = core->parts_.node_silence});
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
  switch (end) {
    case WaitEnd::kTimedOut: {
      int first = -1;
      const std::string cause = who_is_missing(attempt, first);
      raise(ErrorKind::kTimeout, first, cause);
      break;
    }
    case WaitEnd::kLeft: raise_departure(attempt, node); break;
    case WaitEnd::kFailed:
    case WaitEnd::kReady: break;
  }
  return error_of_failure(attempt);
}

Error GroupCore::fail(const OperationContext& attempt, ErrorKind kind, int peer_rank,
                      const std::string& cause) {
  raise(kind, peer_rank, cause);
  return error_of_failure(attempt);
}

std::string GroupCore::origins_of_calls() {
  std::map<int, std::string> origins;  // a node may answer over several links
  for (const RankProgress& one : watch_->query_progress(kAskPatience).progress) {
    if (one.whereabouts.find(kCalledFrom) == std::string::npos) continue;
    origins[one.rank] = one.whereabouts;
  }
  std::string text;
  int told = 0;
  for (const auto& [rank, where] : origins) {
    if (++told > kMostTold) break;
    text += ". " + name_rank(rank) + ": " + where;
  }
  return text;
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
  std::set<int> ahead;  // a node may answer over several links
  const std::uint64_t own = progress_.entered(here().local);
  for (const RankProgress& one : watch_->query_progress(patience).progress) {
    if (one.entered > own) ahead.insert(one.rank);
  }
  return {ahead.begin(), ahead.end()};
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
  return finish(std::move(error));
}

Error GroupCore::finish(Error error) {
  const std::lock_guard lock(finishing_);
  if (!finished_) finished_ = error;
  return error;
}

// Returns a text about the ranks that the operation waits for, and sets `first` to the rank to
// blame. Ticks count the same steps on all ranks of the world, so the lowest tick shows the
// slowest ranks.
//
// Stopped and silent ranks are blamed first. A rank that did not arrive, or did not send, may
// itself wait for such a rank in an earlier call.
std::string GroupCore::who_is_missing(const OperationContext& attempt, int& first) const {
  const bool is_message = !attempt.omission.empty();
  const PeerWatch::ProgressReport report = watch_->query_progress(kAskPatience);
  std::set<int> present, absent, stopped, behind;  // a node may answer over several links
  const std::set<int> silent(report.silent.begin(), report.silent.end());
  std::map<int, std::string> whereabouts;  // of the ranks that are missed
  std::uint64_t lowest = std::numeric_limits<std::uint64_t>::max();
  for (const RankProgress& one : report.progress) {
    const bool is_absent = one.entered < attempt.round;
    (is_absent ? absent : present).insert(one.rank);
    if (one.rank == here().rank) continue;
    const bool is_missed = is_message ? one.rank == attempt.partner : is_absent;
    if (is_missed && !one.whereabouts.empty()) {
      whereabouts[one.rank] = one.whereabouts;
    }
    if (one.stopped) stopped.insert(one.rank);
    if (one.tick < lowest) behind.clear();
    lowest = std::min(lowest, one.tick);
    if (one.tick == lowest) behind.insert(one.rank);
  }
  if (is_message || !absent.empty() || !stopped.empty() || !silent.empty()) behind.clear();

  const auto blame = [&](const std::set<int>& ranks) {
    if (first >= 0 || ranks.empty()) return;
    first = ranks.contains(attempt.partner) ? attempt.partner : *ranks.begin();
  };
  blame(stopped);
  blame(silent);
  if (first < 0) first = attempt.partner;
  blame(absent);
  blame(behind);

  std::string text;
  if (is_message) text = attempt.omission;
  if (is_message && attempt.partner >= 0) text = name_rank(attempt.partner) + " " + text;
  const auto list = [](const std::set<int>& ranks) {
    return name_ranks(std::vector<int>(ranks.begin(), ranks.end()));
  };
  const auto add = [&](const std::set<int>& ranks, const char* one, const char* many) {
    if (ranks.empty()) return;
    text += (text.empty() ? "" : "; ") + list(ranks) + (ranks.size() == 1 ? one : many);
  };
  add(absent, " did not arrive", " did not arrive");
  add(stopped, " is stopped (by a signal or a debugger)",
      " are stopped (by a signal or a debugger)");
  add(silent, " does not answer", " do not answer");
  add(behind, " halted in it", " halted in it");
  if (!absent.empty()) add(present, " is there", " are there");
  if (!absent.empty() && parts_.explain_absence) {
    const std::string known =
        parts_.explain_absence(std::vector<int>(absent.begin(), absent.end()));
    if (!known.empty()) text += "; " + known;
  }
  int told = 0;
  for (const auto& [rank, what] : whereabouts) {
    if (++told > kMostTold) break;
    text += ". " + name_rank(rank) + ": " + what;
  }
  return text;
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
