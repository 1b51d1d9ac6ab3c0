// Failure: the part of Membership that judges a generation that failed. It finds the first end and
// the blamed node, decides whether a restart follows, and makes the verdict.
#include <algorithm>
#include <limits>
#include <utility>

#include "base/assert.h"
#include "base/concat.h"
#include "base/exit_codes.h"
#include "rendezvous/membership/core/membership.h"

namespace ddprun {
namespace {

constexpr std::size_t kEndsKept = 256;

// Limit for the age of a worker's end that an agent reports. Older ends count as this old.
constexpr Duration kLongestAge = std::chrono::hours(24 * 365);

}  // namespace

// Records the ends that the member reports for the current generation. An agent repeats its
// list. A known end keeps the time at which it was first reported.
void Membership::collect(const Member& member) {
  for (const WorkerEnd& end : member.status.ends) {
    const bool known = std::ranges::any_of(ends_, [&](const DatedEnd& dated) {
      return dated.end.rank == end.rank && dated.end.kind != EndKind::kNodeLost;
    });
    if (known) continue;
    const TimePoint when = now_ - std::min(end.age, kLongestAge);
    take_down(end, ends_known_at_ ? std::max(when, *ends_known_at_) : when);
  }
}

// Records an end. The memory is bounded, whatever agents send: above kEndsKept the least
// likely cause is removed.
void Membership::take_down(const WorkerEnd& end, TimePoint when) {
  ends_.push_back({bounded(end), when});
  if (ends_.size() <= kEndsKept) return;
  for (DatedEnd& dated : ends_) dated.end = dated.as_of(now_);
  ends_.erase(std::ranges::max_element(
      ends_, [](const DatedEnd& a, const DatedEnd& b) { return is_likelier_cause(a.end, b.end); }));
}

// Takes a node that is not fit out of the generation. It stays a member, because it may run this
// service, and because people see it then.
void Membership::take_out_unfit(Member& member) {
  if (!member.assignment || member.status.generation != generation_) {
    return note(concat(member.node.host, " is not fit: ", member.status.unfit));
  }
  add_lost_node(
      member,
      {.kind = EndKind::kNodeLost, .message = member.status.unfit, .loss = NodeLoss::kUnfit}, now_);
  note(describe(ends_.back().end));
  member.assignment.reset();
  member.node_rank.reset();
  recount(member);
  failed_ = true;
  if (phase_ == JobPhase::kRunning) begin_forming(GenerationEnd::kFailed, "a node is not fit");
}

// Records the workers that crashed after their work was done. Returns whether there are any.
// REQUIRES: every node has finished.
bool Membership::has_crashes_at_the_end() {
  for (const auto& [id, member] : members_) {
    if (member.assignment) collect(member);
  }
  put_cause_first();
  return !ends_.empty();
}

// Returns the snapshots that all nodes have reported so far for the generation that hung.
std::vector<WorkerSnapshot> Membership::snapshots() const {
  std::vector<WorkerSnapshot> all;
  for (const auto& [id, member] : members_) {
    if (!member.assignment || member.status.generation != generation_) continue;
    for (const WorkerSnapshot& one : member.status.snapshots) {
      all.push_back(one);
      all.back().host = member.node.host;
      all.back().node_rank = member.assignment->node_rank;
    }
  }
  return all;
}

// Ends the running generation, because a node reports that workers hang.
void Membership::end_hang() {
  failed_ = look_ = true;
  for (const WorkerEnd& end : hung_ranks(snapshots())) take_down(end, now_ - end.age);
  note("workers hang: " + describe(ends_.front().end));
  books_.hung(first_trouble());
  begin_forming(GenerationEnd::kFailed, "workers hang");
}

// Judges a hang again with the snapshots of all nodes. The node that reported it first knew
// only its own workers.
void Membership::judge_hang() {
  if (!std::exchange(look_, false)) return;
  const std::vector<WorkerSnapshot> all = snapshots();
  seen_ = lines_of(all);
  if (all.empty()) return;
  std::erase_if(ends_, [](const DatedEnd& dated) { return dated.end.kind == EndKind::kHung; });
  for (const WorkerEnd& end : hung_ranks(all)) take_down(end, now_ - end.age);
}

// Returns the highest step that workers of this generation have reported.
std::optional<std::int64_t> Membership::reached() const {
  std::optional<std::int64_t> highest;
  for (const auto& [id, member] : members_) {
    if (!member.assignment || member.status.generation != generation_) continue;
    highest = std::max(highest, member.status.step);
  }
  return highest;
}

// Records ranks that ended with 0 and that the recorded end of another rank blames.
void Membership::take_down_who_left() {
  for (const auto& [id, member] : members_) {
    if (!member.assignment || member.status.generation != generation_) continue;
    for (const LocalRank local : member.status.left) {
      if (local.value < 0 || local.value >= member.node.slots) continue;
      const Rank rank(member.assignment->first_rank.value + local.value);
      const auto accuser = std::ranges::find_if(
          ends_, [&](const DatedEnd& dated) { return dated.end.blames == rank.value; });
      if (accuser == ends_.end()) continue;
      const WorkerEnd end{.rank = rank,
                          .local_rank = local,
                          .node_rank = member.assignment->node_rank,
                          .host = member.node.host};
      take_down(end, accuser->when);
    }
  }
}

void Membership::put_cause_first() {
  std::vector<WorkerEnd> ends;
  for (const DatedEnd& dated : ends_) ends.push_back(dated.as_of(now_));
  ddprun::put_cause_first(ends);
  ends_.clear();
  for (WorkerEnd& end : ends) {
    const TimePoint when = now_ - end.age;
    ends_.push_back({std::move(end), when});
  }
}

// Judges a failure when no node has processes of the failed generation. Returns whether the
// job continues.
bool Membership::settle_failure() {
  failed_ = ended_by_outage_ = false;
  judge_hang();
  take_down_who_left();
  blame_cut_off_service();
  put_cause_first();
  DDPRUN_ASSERT(!ends_.empty(), "a failed generation has an end that made it fail");
  const WorkerEnd& first = ends_.front().end;
  blame(first);
  history_.judge(GenerationEnd::kFailed, describe(first));
  out_.failures.emplace_back(kind_word(first));
  std::optional<Duration> lived;
  // The clock of an earlier run's host may have been ahead.
  if (const auto formed = formed_at(); formed && *formed <= now_) lived = now_ - *formed;
  const bool is_unfit = first.kind == EndKind::kNodeLost && first.loss == NodeLoss::kUnfit;
  RestartBudget::Decision decision;
  if (!is_unfit) {
    decision = budget_.decide(first, lived, reached(), now_);
  } else if (spec_.nodes.max == 1 && members_.size() == 1) {
    decision.why_not = "the job has no other node";
  } else {
    decision.restart = true;  // no budget: each node can be unfit only once
  }
  Verdict verdict = verdict_of_failure();
  remember_failure(verdict);
  if (!decision.restart) {
    if (!decision.why_not.empty()) set_not_restarted(verdict, decision.why_not);
    end(std::move(verdict));
    return false;
  }
  failure_ = std::move(verdict);
  if (is_unfit) {
    reason_ = describe(first);
  } else {
    ++out_.restarts;
    reason_ = "restart " + budget_.in_words(now_) + ": " + describe(first);
  }
  forming_since_ = now_;
  pause_ = decision.pause;
  not_before_ = now_ + pause_;
  if (pause_ > Duration(0)) {
    note(named() + ": " + words_of_pause());
    for (const auto& member : members_) direct(member);
  }
  return true;
}

// Returns whether all hung ranks are on one node. If ranks of several nodes hang, one node is
// hardly the cause.
bool Membership::hangs_on_one_node() const {
  return std::ranges::all_of(ends_, [this](const DatedEnd& dated) {
    return dated.end.kind != EndKind::kHung || dated.end.host == ends_.front().end.host;
  });
}

void Membership::blame(const WorkerEnd& first) {
  const bool is_hung = first.kind == EndKind::kHung && hangs_on_one_node();
  if (!is_of_process(first) && !is_hung) return;
  if (failures_.blame(first.host) != spec_.node_failures) return;
  note(concat("the workers of ", first.host, " were the first to fail in ", spec_.node_failures,
              " generations (--node-failures): other nodes are preferred from now on"));
}

// Returns the text to append to failures of the host. Empty while it has fewer than
// node_failures.
std::string Membership::blame_of(const std::string& host) const {
  const int count = failures_.of(host);
  if (count < spec_.node_failures) return "";
  return concat("; the workers of ", host, " were the first to fail in ", count, " generations");
}

Verdict Membership::verdict_of_failure() const {
  const WorkerEnd& first = ends_.front().end;
  Verdict verdict{.exit_code = exit_code_of(first),
                  .generation = generation_,
                  .restarts_used = budget_.used(),
                  .max_restarts = spec_.max_restarts};
  // If the first end is a rank that left early with 0, the code is that of the rank that
  // failed because of it.
  for (const DatedEnd& dated : ends_) {
    if (verdict.exit_code == 0) verdict.exit_code = exit_code_of(dated.end);
  }
  if (verdict.exit_code == 0) verdict.exit_code = to_int(ExitCode::kInternal);
  verdict.headline = describe(first) + blame_of(first.host);
  std::size_t known = 0;
  for (const auto& [id, member] : members_) {
    if (member.status.generation != generation_) continue;
    known += member.status.ends.size() + static_cast<std::size_t>(member.status.more_ends);
  }
  for (const DatedEnd& dated : ends_) {
    verdict.ends.push_back(dated.end);
    known += dated.end.kind == EndKind::kNodeLost ? 1 : 0;
  }
  known = std::max(known, verdict.ends.size());
  verdict.seen = seen_;
  keep_likeliest(verdict.ends);
  verdict.more_ends = static_cast<int>(
      std::min<std::size_t>(known - verdict.ends.size(), std::numeric_limits<int>::max()));
  return verdict;
}

// Keeps an excerpt of the verdict of a failed generation for later requests. It is an excerpt,
// because a status page has a size limit.
void Membership::remember_failure(Verdict verdict) {
  const auto keep = [](Verdict& of, std::size_t ends, std::size_t in_words, std::size_t seen) {
    if (of.ends.size() > ends) {
      const auto left_out = static_cast<int>(of.ends.size() - ends);
      of.more_ends = std::min(of.more_ends, std::numeric_limits<int>::max() - left_out) + left_out;
      of.ends.resize(ends);
    }
    for (std::size_t i = in_words; i < of.ends.size(); ++i) {
      of.ends[i].stderr_tail.clear();
      of.ends[i].frames.clear();
    }
    if (of.seen.size() > seen) of.seen.resize(seen);
  };
  if (!failed_generations_.empty()) {
    keep(failed_generations_.back().verdict, kEndsOfOlder, 0, 0);
  }
  keep(verdict, kEndsOfNewest, kEndsInWords, kSeenKept);
  failed_generations_.push_back({now_, std::move(verdict)});
  if (failed_generations_.size() > kFailuresKept) failed_generations_.pop_front();
}

}  // namespace ddprun
