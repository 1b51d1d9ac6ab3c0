// Recall: the part of Membership that finds out in which state an earlier run of the service
// left the job (membership.h, "Recalling").
#include <set>
#include <utility>

#include "base/assert.h"
#include "base/concat.h"
#include "rendezvous/membership/core/membership.h"

namespace ddprun {
namespace {

constexpr const char* kServiceRestarted = "the rendezvous service was restarted";

}  // namespace

void Membership::expect_past(TimePoint until) {
  DDPRUN_ASSERT(generation_ < Generation(0), "a job's past is recalled before it goes on");
  recall_until_ = until;
}

// Records what an agent knows of the job from the earlier run.
void Membership::recall(Member& member, const Hello& hello) {
  if (hello.status.generation > generation_) {
    generation_ = hello.status.generation;
    for (auto& [id, other] : members_) {
      other.assignment.reset();
      other.node_rank.reset();
    }
    ends_.clear();
    failed_ = false;
    checkpoints_ = 0;
    missing_.clear();
    was_forming_ = recall_broken_ = judges_recalled_ = false;
    recalled_nodes_ = 0;
    history_.recall(generation_, 0, 0);
    recount_all();
  }
  if (!hello.assignment) return;
  // An agent may report any number, even more than the budget.
  budget_.believe(hello.assignment->restart_count);
  if (hello.assignment->generation != generation_) return;
  member.assignment = hello.assignment;
  member.node_rank = hello.assignment->node_rank.value;
  recalled_nodes_ = hello.assignment->node_count;
  history_.recall(generation_, hello.assignment->node_count, hello.assignment->world_size);
  recount(member);
}

// Tries to end the recall. Returns true when it is over and advance() can decide how the job
// continues.
bool Membership::settle_recall() {
  // If the job is known never to have run, no particular nodes are needed, only as many as
  // fit.
  if (remembers_ && generation_ < Generation(0) &&
      tally_.available >= static_cast<std::size_t>(spec_.nodes.max)) {
    recall_until_.reset();
    find_first_lease();
    return true;
  }
  bool ended = recall_broken_ || ending_ || !ends_.empty() || tally_.quit > 0;
  // Usually one more node has come and others are still missing. This check avoids the loop
  // below.
  const bool some_are_missing =
      tally_.present == 0 || tally_.present < static_cast<std::size_t>(recalled_nodes_);
  if (!ended && some_are_missing && now_ < *recall_until_) return false;
  std::set<NodeRank> here;
  int nodes = 0;
  bool awaiting = false;
  for (const auto& [id, member] : members_) {
    awaiting = awaiting || member.awaited;
    if (!member.assignment) continue;
    nodes = member.assignment->node_count;
    if (member.awaited) continue;
    here.insert(member.assignment->node_rank);
  }
  const bool complete = nodes > 0 && static_cast<int>(here.size()) >= nodes;
  if (complete && !ended) {
    take_over();
    return true;
  }
  // If the earlier run had begun to end the generation, it is known whether the generation
  // failed. Otherwise that is judged when every node has reported, because one node's failure
  // may be caused by another's.
  judges_recalled_ = !was_forming_;
  if (ended && !std::exchange(recall_broken_, true)) {
    begin_forming(GenerationEnd::kInterrupted, kServiceRestarted);
  }
  const bool can_end = ending_ && !awaiting;
  if (!complete && !can_end && now_ < *recall_until_) return false;
  recall_until_.reset();
  std::vector<WorkerEnd> lost = give_up_awaited(here);
  find_first_lease();
  if (ended) return true;
  if (here.empty()) {  // no node has come back: the outage may be all that has happened
    if (generation_ >= Generation(0)) reason_ = kServiceRestarted;
    const TimePoint heard = books_.is_in_generation() ? books_.state().open.heard : now_;
    history_.leave(GenerationEnd::kInterrupted, kServiceRestarted, heard);
    books_.leave(TimeCause::kRecovery, heard, now_);
    return true;
  }
  // The other nodes still run the generation, so the outage did not end these nodes' workers.
  for (WorkerEnd& end : lost) {
    note(describe(end));
    ++out_.lease_losses;
    ends_.push_back({std::move(end), now_});
  }
  failed_ = true;
  judges_recalled_ = false;
  begin_forming(GenerationEnd::kFailed, "a node was lost");
  return true;
}

// Removes the nodes of the generation that did not come, and returns an end for each. If no
// name is known, it returns one end for the lowest missing node rank.
std::vector<WorkerEnd> Membership::give_up_awaited(const std::set<NodeRank>& here) {
  WorkerEnd end{.kind = EndKind::kNodeLost,
                .message = concat(
                    "it did not come back to the restarted rendezvous service within ", lease_)};
  std::vector<WorkerEnd> lost;
  for (auto it = members_.begin(); it != members_.end();) {
    const auto current = it++;
    const Member& member = current->second;
    if (!member.awaited) continue;
    if (member.assignment) {
      end.node_rank = member.assignment->node_rank;
      end.host = member.node.host;
      missing_.push_back(end.host);
      lost.push_back(end);
    }
    erase(current);
  }
  if (!lost.empty()) return lost;
  end.node_rank = NodeRank(0);
  while (here.contains(end.node_rank)) ++end.node_rank.value;
  end.host = "its name is not known";
  return {end};
}

void Membership::take_over() {
  recall_until_.reset();
  find_first_lease();
  phase_ = JobPhase::kRunning;
  history_.go_on();
  if (!books_.is_in_generation()) {  // the history before that is lost
    books_.form(now_);
    books_.started(now_);
    for (const auto& [id, member] : members_)
      if (member.assignment) books_.report(member.status.times, member.status.step, now_);
  }
  failed_ = judges_recalled_ = false;
  search_slow_ranks();
  for (auto& [id, member] : members_) {
    member.checkpoints_seen = checkpoints_;
    if (member.assignment) reason_ = member.assignment->reason;
  }
  note(concat(named(), ": took over generation ", generation_, ", ", budget_.in_words(now_),
              " restarts used", remembers_ ? "" : "; its history before that is lost"));
  // Agents report a hang only once, perhaps during the outage.
  if (!snapshots().empty()) end_hang();
}

}  // namespace ddprun
