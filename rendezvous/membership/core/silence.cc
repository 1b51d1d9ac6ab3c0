// Silence: the part of Membership that judges silence (membership.h, "Silence"). It handles a
// node that was cut off and a service that did not run for a while. It also handles a service
// that every other node was cut off from.
#include <algorithm>
#include <csignal>
#include <utility>

#include "base/concat.h"
#include "rendezvous/membership/core/membership.h"

namespace ddprun {
namespace {

// Returns the shortest time in which an agent may end its workers after the service stopped
// answering. An agent ends its workers after four fifths of a lease without an answer. It
// sends a heartbeat at least four times in a lease (LeaseTimes).
Duration earliest_patience(Duration lease) { return lease / 5 * 4 - lease / 4; }

// Returns whether the worker failed by itself, and not because other workers were ended after
// `time`. Ended workers make others exit, or abort themselves. They cause no other signal.
bool is_own_failure(const WorkerEnd& end, TimePoint when, TimePoint time) {
  if (end.after_stop || end.kind == EndKind::kNodeLost) return false;
  const bool is_killed = end.kind == EndKind::kSignaled && end.code != SIGABRT && end.blames < 0;
  return when < time || is_killed;
}

}  // namespace

// Records a lost node for a member that was cut off and is back without workers.
void Membership::note_cut_off(const Member& member, const Hello& hello, TimePoint last_heard) {
  const AgentStatus& is = hello.status;
  const AgentStatus& was = member.status;
  if (member.local || !member.assignment || phase_ == JobPhase::kEnded || recall_until_) return;
  if (!is.unfit.empty()) return;  // it had no workers
  if (now_ - last_heard < lease_ / 2 || is.generation != generation_) return;
  const bool ended = is.phase == AgentPhase::kIdle || is.phase == AgentPhase::kStopping;
  const bool ran = was.phase == AgentPhase::kRunning || was.generation < generation_;
  if (!ended || !ran) return;
  if (outage_ && last_heard <= outage_->ended) return;
  const TimePoint patience = last_heard + earliest_patience(lease_);
  const bool failed_itself = std::ranges::any_of(
      is.ends, [&](const WorkerEnd& end) { return is_own_failure(end, now_ - end.age, patience); });
  if (failed_itself) return;
  WorkerEnd end{.kind = EndKind::kNodeLost,
                .message = concat("it was cut off from the rendezvous service for ",
                                  now_ - last_heard, ", and its agent has ended its workers")};
  end.unseen = lease_ / 4;
  add_lost_node(member, std::move(end), last_heard);
}

void Membership::add_lost_node(const Member& member, WorkerEnd end, TimePoint when) {
  end.node_rank = member.assignment->node_rank;
  end.host = member.node.host;
  ends_.push_back({std::move(end), when});
}

void Membership::was_held_up(Duration time, TimePoint now) {
  if (phase_ == JobPhase::kEnded) return;
  for (auto& [id, member] : members_) {
    if (!member.local) member.last_heard = std::min(now, member.last_heard + time);
  }
  if (recall_until_) *recall_until_ += time;
  forming_since_ = std::min(now, forming_since_ + time);
  const TimePoint began = now - time;
  // No agent has ended workers in so short a time.
  if (time < earliest_patience(lease_)) return find_first_lease();
  const bool goes_on = outage_ && began <= outage_->ended + lease_;
  outage_ = {goes_on ? outage_->began : began, now};
  find_first_lease();
}

// Returns whether a worker has failed by itself, and not because agents without the service
// ended theirs.
bool Membership::has_failed_itself() const {
  const TimePoint time = outage_->began + earliest_patience(lease_);
  return std::ranges::any_of(
      ends_, [&](const DatedEnd& dated) { return is_own_failure(dated.end, dated.when, time); });
}

// Returns whether, in a recalled generation, a worker has failed by itself or a node was lost.
// The agent whose patience ends first stops its workers. Later ends on other nodes may be
// caused by that.
bool Membership::has_failed_before_stop() const {
  TimePoint stopped = TimePoint::max();
  for (const DatedEnd& dated : ends_) {
    if (dated.end.after_stop) stopped = std::min(stopped, dated.when);
  }
  return std::ranges::any_of(ends_, [stopped](const DatedEnd& dated) {
    const bool is_lost = dated.end.kind == EndKind::kNodeLost;
    return is_lost || is_own_failure(dated.end, dated.when, stopped);
  });
}

// Returns whether the member's workers have ended because the service did not run. If so, it
// ends the generation, and no worker is blamed. No restart is used, unless the same happened
// less than kFreeAgain ago. REQUIRES: kRunning, and the member's report is collected.
bool Membership::ended_by_outage(const Member& member) {
  if (!outage_ || now_ > outage_->ended + lease_ || member.local) return false;
  if (has_failed_itself()) return false;
  const auto host =
      std::ranges::find_if(members_, [](const auto& entry) { return entry.second.local; });
  std::string what = "the rendezvous service";
  if (host != members_.end()) what += " on " + host->second.node.host;
  what += concat(" did not run for ", outage_->ended - outage_->began);
  if (last_free_ && now_ < *last_free_ + kFreeAgain) {
    WorkerEnd end{.kind = EndKind::kNodeLost,
                  .message = concat(what, ", again within ", kFreeAgain)};
    if (host != members_.end() && host->second.assignment) {
      add_lost_node(host->second, std::move(end), outage_->began);
    } else {  // no node of the generation runs the service
      ends_.push_back({std::move(end), outage_->began});
    }
    failed_ = true;
  } else {
    last_free_ = now_;
    ended_by_outage_ = true;
  }
  begin_forming(failed_ ? GenerationEnd::kFailed : GenerationEnd::kInterrupted, what);
  return true;
}

// If every node except the one with the service fell silent, blames that one: its cable was
// cut. With only two nodes it cannot be known which one was cut off.
void Membership::blame_cut_off_service() {
  const auto host = std::ranges::find_if(
      members_, [](const auto& entry) { return entry.second.local && entry.second.assignment; });
  if (host == members_.end()) return;
  const auto is_silent = [](const DatedEnd& dated) {
    return dated.end.kind == EndKind::kNodeLost && dated.end.unseen > Duration(0);
  };
  const auto silent = std::ranges::count_if(ends_, is_silent);
  if (silent < 2 || silent + 1 < host->second.assignment->node_count) return;
  TimePoint when = TimePoint::max();
  for (const DatedEnd& dated : ends_) {
    if (is_silent(dated)) when = std::min(when, dated.when);
  }
  std::erase_if(ends_, is_silent);
  add_lost_node(host->second,
                {.kind = EndKind::kNodeLost,
                 .message = "it runs the rendezvous service, and no other node could reach it"},
                when);
}

}  // namespace ddprun
