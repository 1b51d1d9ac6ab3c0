// Requests: the part of Membership that does what a person asks for
// (rendezvous/protocol/core/user_request.h).
#include <csignal>
#include <utility>

#include "base/concat.h"
#include "base/counted.h"
#include "base/exit_codes.h"
#include "base/signal_names.h"
#include "rendezvous/membership/core/membership.h"

namespace ddprun {

MembershipOutput Membership::request(const UserRequest& request, TimePoint now) {
  using enum UserRequest::What;
  now_ = now;
  Answer& answer = out_.answer.emplace();
  answer.number = request.number;
  if (phase_ == JobPhase::kEnded) {
    answer.text = named() + " has ended: " + verdict_->headline;
    return std::exchange(out_, {});
  }
  switch (request.what) {
    case kStatus: break;  // RendezvousServer makes the page
    case kStop: stop_for(request); break;
    case kRestart: restart_for(request); break;
    case kSignal: pass_on_for(request); break;
    case kLogs:
    case kFlight:
    case kStacks: look_for_output(request, answer); break;
  }
  return std::exchange(out_, {});
}

// Begins to stop the job. A second request may still remove the workers' grace period.
void Membership::stop_for(const UserRequest& request) {
  *out_.answer = {.number = request.number,
                  .done = true,
                  .text = named() + " is being stopped on " + counted(members_.size(), "node")};
  const bool hurries = request.at_once && !at_once_;
  at_once_ = at_once_ || request.at_once;
  if (!ending_) {
    const std::string what = request.by + " asked for it" + (at_once_ ? ", at once" : "");
    note(named() + " is being stopped: " + what);
    ending_ = stopped_verdict(exit_code_of_signal(SIGTERM), what);
  }
  books_.stop(now_);
  if (phase_ == JobPhase::kRunning) {
    begin_forming(GenerationEnd::kStopped,
                  "the job is being stopped: " + request.by + " asked for it");
  } else if (hurries && !recall_until_) {
    for (const auto& member : members_) {
      if (runs_workers(member.second)) direct(member);
    }
  }
  advance();
}

void Membership::restart_for(const UserRequest& request) {
  Answer& answer = *out_.answer;
  if (ending_) {
    answer.text = named() + " is being stopped: " + ending_->headline;
  } else if (recall_until_) {
    answer.text =
        "the rendezvous service has just been started and waits for nodes of the job that may be "
        "on "
        "their way back: ask again in a moment";
  } else if (phase_ == JobPhase::kForming) {
    answer.text =
        generation_ < Generation(0)
            ? "no generation runs yet: " + presence()
            : concat("generation ", generation_,
                     " has ended already, and the next one is being formed: ", presence());
  } else {
    answer.done = true;
    answer.text = concat("generation ", generation_, " ends and is formed again on ",
                         counted(tally_.assigned, "node"), "; this uses no restart");
    begin_forming(GenerationEnd::kRestarted, "restart asked for by " + request.by);
    note(named() + ": " + reason_);
    advance();
  }
}

void Membership::pass_on_for(const UserRequest& request) {
  Answer& answer = *out_.answer;
  if (phase_ != JobPhase::kRunning) {
    answer.text = named() + " runs no workers now";
    answer.no_workers = !recall_until_ && !anyone_busy() && !has_enough();
    return;
  }
  int workers = 0;
  const std::vector<std::string> nodes = nodes_of(request.rank);
  for (const std::string& id : nodes) {
    const Member& member = members_.at(id);
    if (!member.connected) {
      // No signal is kept for the node: a late signal is worse than a missing one.
      answer.text = member.node.host + " cannot be reached now: no worker was signalled";
      out_.pass_ons.clear();
      return;
    }
    out_.pass_ons.push_back({id, ForwardSignal{generation_, request.signal, request.rank}});
    workers += request.rank ? 1 : member.node.slots;
  }
  if (nodes.empty()) {
    answer.text = no_such_rank(*request.rank);
    return;
  }
  answer.done = true;
  answer.text = "sending " + signal_name(request.signal) + " to " + counted(workers, "worker") +
                " on " + counted(nodes.size(), "node");
}

// Answers whether there is output to read. The workers of an ended generation have output,
// too.
void Membership::look_for_output(const UserRequest& request, Answer& answer) const {
  answer.done = !nodes_of(request.rank).empty();
  if (answer.done) return;
  const bool is_rank_wrong = request.rank && !nodes_of(std::nullopt).empty();
  answer.text =
      is_rank_wrong ? no_such_rank(*request.rank) : named() + " runs no workers now: " + presence();
}

std::vector<std::string> Membership::nodes_of(std::optional<Rank> rank) const {
  std::vector<std::string> ids;
  for (const auto& [id, member] : members_) {
    if (!member.assignment) continue;
    const int first = member.assignment->first_rank.value;
    const bool is_meant =
        !rank || (rank->value >= first && rank->value - first < member.node.slots);
    if (is_meant) ids.push_back(id);
  }
  return ids;
}

std::string Membership::no_such_rank(Rank rank) const {
  int world_size = 0;
  for (const auto& [id, member] : members_) {
    if (member.assignment) world_size = member.assignment->world_size;
  }
  return concat("--rank: invalid value '", rank, "' (expected 0",
                world_size > 1 ? concat(" to ", world_size - 1) : "", ")");
}

}  // namespace ddprun
