// Directives: the part of Membership that decides what each member is told: what to run, which
// store to connect to, and why it waits.
#include <algorithm>
#include <iterator>
#include <set>
#include <string>
#include <vector>

#include "base/concat.h"
#include "base/host_port.h"
#include "rendezvous/membership/core/membership.h"
#include "rendezvous/protocol/core/list_of_names.h"

namespace ddprun {

std::string Membership::store_host_of(const Member& host) const {
  if (!is_loopback_host(host.node.address) || service_address_.empty()) return host.node.address;
  const bool others_are_elsewhere = std::ranges::any_of(
      members_, [](const auto& entry) { return !is_loopback_host(entry.second.node.address); });
  return others_are_elsewhere ? service_address_ : host.node.address;
}

// Returns what the member must run. Only the store's host is told which addresses may connect
// to the store.
Assignment Membership::part_of(const Member& member) const {
  Assignment part = *member.assignment;
  if (failure_) {
    const bool failed_first = failure_->ends.front().host == member.node.host;
    if (failed_first || part.node_rank == NodeRank(0)) part.failure = failure_;
  }
  if (part.node_rank != NodeRank(0)) return part;
  // The first address of each node comes before the second of any node, because not all may
  // fit.
  std::size_t bytes = 0;
  bool more = true;
  for (std::size_t i = 0; more; ++i) {
    more = false;
    for (const auto& [id, other] : members_) {
      if (!other.assignment || other.assignment->generation != part.generation) continue;
      if (i > other.node.other_addresses.size()) continue;
      const std::string& address = i == 0 ? other.node.address : other.node.other_addresses[i - 1];
      bytes += address.size() + 3;  // as JSON
      if (bytes > kMaxPeersBytes) return part;
      part.peers.push_back(address);
      more = true;
    }
  }
  return part;
}

ServiceMessage Membership::directive_for(const Member& member) const {
  switch (phase_) {
    case JobPhase::kEnded:
      return End{.verdict = *verdict_,
                 .runs_end_commands = member.node.agent_id == end_command_agent_};
    case JobPhase::kRunning:
      if (member.assignment) return part_of(member);
      if (runs_workers(member)) return Stop{member.status.generation, "this generation is over"};
      return Wait{why_it_waits(member), generation_};
    case JobPhase::kForming: break;
  }
  if (recall_until_ && !recall_broken_) {
    if (member.assignment) return part_of(member);  // it continues unchanged
    if (!runs_workers(member)) {
      return Wait{
          "the rendezvous service has just started, and nodes of the job may be on their "
          "way back; " +
              presence(),
          generation_};
    }
  }
  if (!runs_workers(member)) {
    return Wait{pause_ > Duration(0) ? words_of_pause() : presence(), generation_};
  }
  return Stop{std::max(member.status.generation, member.assignment ? member.assignment->generation
                                                                   : member.status.generation),
              ends_.empty() ? reason_ : describe(ends_.front().end), at_once_, look_};
}

void Membership::direct(const Members::value_type& member) {
  if (member.second.connected)
    out_.directives.push_back({member.first, directive_for(member.second)});
}

std::string Membership::words_of_pause() const {
  return concat(
      "the workers fail within seconds of each start: the next one comes after a pause of ",
      pause_);
}

std::string Membership::presence() const {
  std::vector<std::string> hosts;
  for (const auto& [id, member] : members_) {
    if (hosts.size() > kNamesShown) break;
    if (member.connected) hosts.push_back(member.node.host);
  }
  const std::string names = list_of(hosts);
  const std::string gone = missing();
  const std::string bad = unfit();
  return concat(connected_count(), " of ", spec_.nodes, " nodes here",
                names.empty() ? "" : ": " + names, gone.empty() ? "" : "; missing: " + gone,
                bad.empty() ? "" : "; not fit: " + bad);
}

// Returns the hosts that are here and not fit, with the reason. Empty: there are none.
std::string Membership::unfit() const {
  std::vector<std::string> bad;
  for (const auto& [id, member] : members_) {
    if (bad.size() > kNamesShown) break;
    if (!member.connected || member.status.unfit.empty()) continue;
    bad.push_back(concat(member.node.host, " (", member.status.unfit, ")"));
  }
  return list_of(bad);
}

// Returns the hosts that were in the newest generation and are gone. If no node was lost and all
// nodes of a job of fixed size ask for a rank, it returns the ranks that no node has asked for.
// Empty in all other cases. A connected host is not missing: another agent on the same host may
// replace a lost one before its lease runs out.
std::string Membership::missing() const {
  std::vector<std::string> gone;
  std::set<std::string> here;
  for (const auto& [id, member] : members_) {
    if (!missing_.empty() && member.connected) here.insert(member.node.host);
  }
  std::copy_if(missing_.begin(), missing_.end(), std::back_inserter(gone),
               [&](const std::string& host) { return !here.contains(host); });
  if (!gone.empty()) return list_of(gone);
  if (!missing_.empty()) return "";
  if (is_elastic()) return "";
  std::set<int> asked;
  for (const auto& [id, member] : members_) {
    if (!member.connected) continue;
    if (!member.node.node_rank) return "";
    asked.insert(*member.node.node_rank);
  }
  if (asked.empty()) return "";
  std::vector<std::string> ranks;
  for (int rank = 0; rank < spec_.nodes.max && ranks.size() <= kNamesShown; ++rank) {
    if (!asked.contains(rank)) ranks.push_back(concat("node rank ", rank));
  }
  return list_of(ranks);
}

// Returns why a member without a part in the running generation waits.
std::string Membership::why_it_waits(const Member& member) const {
  if (!member.status.unfit.empty()) return "this node is not fit: " + member.status.unfit;
  if (tally_.assigned < static_cast<std::size_t>(spec_.nodes.max)) {
    if (spec_.on_join == OnJoin::kCheckpoint) {
      return "this node joins at the next checkpoint that is announced (--on-join=checkpoint)";
    }
    if (spec_.on_join == OnJoin::kRestart) {
      return "this node joins with the next generation (--on-join=restart)";
    }
  }
  return concat("every place of --nnodes=", spec_.nodes, " is taken; this node is a spare",
                blame_of(member.node.host));
}

}  // namespace ddprun
