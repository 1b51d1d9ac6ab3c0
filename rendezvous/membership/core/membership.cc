#include "rendezvous/membership/core/membership.h"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "base/concat.h"
#include "base/counted.h"
#include "base/earlier.h"
#include "base/exit_codes.h"
#include "base/host_port.h"
#include "base/is_control.h"
#include "base/signal_names.h"
#include "rendezvous/membership/core/node_order.h"
#include "rendezvous/protocol/core/list_of_names.h"

namespace ddprun {
namespace {

// Returns whether the number leaves room for all later generations, which are numbered one by
// one.
bool is_possible(Generation generation) { return generation.value <= kMaxGeneration / 2; }

// Returns how a generation ended that ran until the end of its job.
GenerationEnd end_of(const Verdict& verdict) {
  if (verdict.success) return GenerationEnd::kSucceeded;
  return verdict.cause == VerdictCause::kStopped ? GenerationEnd::kStopped : GenerationEnd::kFailed;
}

// Returns which node replaces which node that failed too often, for people. Empty if none was
// replaced.
std::string replacements(const std::vector<NodeCandidate>& nodes,
                         const std::vector<std::size_t>& order) {
  std::vector<std::string> replaced;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const std::optional<int> rank = nodes[i].previous_rank;
    if (nodes[i].failures == 0 || !rank || *rank < 0) continue;
    if (static_cast<std::size_t>(*rank) >= order.size()) continue;
    if (std::ranges::find(order, i) != order.end()) continue;
    replaced.push_back(concat(nodes[order[static_cast<std::size_t>(*rank)]].host, " replaces ",
                              nodes[i].host, ", whose workers were the first to fail in ",
                              nodes[i].failures, " generations"));
  }
  return replaced.empty() ? "" : "; " + list_of(replaced);
}

}  // namespace

Membership::Membership(JobSpec spec, Duration lease, TimePoint now)
    : spec_(std::move(spec)),
      lease_(lease),
      budget_(spec_.max_restarts, spec_.restart_rules),
      books_(now),
      forming_since_(now) {}

Membership::Membership(const JobState& state, Duration lease, TimePoint now,
                       Duration earlier_run_lasts)
    : spec_(state.spec),
      lease_(lease),
      phase_(state.phase == JobPhase::kEnded ? JobPhase::kEnded : JobPhase::kForming),
      generation_(state.generation),
      budget_(spec_.max_restarts, spec_.restart_rules),
      books_(state.books ? TimeBooks(*state.books, now) : TimeBooks(now)),
      history_(state.generations),
      reason_(state.reason),
      forming_since_(now),
      remembers_(true),
      failed_(state.failed),
      ending_(state.ending),
      failures_(state.node_failures),
      missing_(state.missing),
      verdict_(state.verdict) {
  budget_.restore(state.restarts_used, state.restart_ages, state.strikes, now);
  if (phase_ == JobPhase::kEnded) return;
  recall_until_ = now + lease_ + earlier_run_lasts;
  was_forming_ = recall_broken_ = state.phase == JobPhase::kForming && generation_ >= Generation(0);
  for (const Place& place : state.places) {
    members_[place.node.agent_id] = {
        .node = place.node,
        .status = {.phase = AgentPhase::kRunning, .generation = generation_},
        .awaited = true,
        .last_heard = now,
        .node_rank = place.assignment.node_rank.value,
        .assignment = place.assignment};
    recalled_nodes_ = place.assignment.node_count;
    history_.recall(generation_, place.assignment.node_count, place.assignment.world_size);
  }
  recount_all();
  for (const WorkerEnd& end : state.ends) ends_.push_back({end, now - end.age});
  if (!ends_.empty()) ends_known_at_ = now;
  look_ = std::ranges::any_of(state.ends,
                              [](const WorkerEnd& end) { return end.kind == EndKind::kHung; });
}

// --- state that survives a restart of the service ------------------------------------------------

// While a running generation is recalled, the durable phase stays kRunning.
JobPhase Membership::durable_phase() const {
  // Another run must judge the generation again if this one is killed before it has done so.
  const bool is_unjudged = (recall_until_ && !recall_broken_) || judges_recalled_;
  return phase_ == JobPhase::kForming && is_unjudged && generation_ >= Generation(0)
             ? JobPhase::kRunning
             : phase_;
}

// During a recall nodes come one by one. Their places are recorded when the recall is over.
Membership::Landmark Membership::landmark() const {
  return {.phase = durable_phase(),
          .generation = generation_,
          .restarts_used = budget_.used(),
          .failed = failed_,
          .ending = ending_.has_value(),
          .places = recall_until_ ? 0 : tally_.assigned,
          .books = books_.state().open.heard.time_since_epoch() / kBooksKeptEvery};
}

JobState Membership::state(TimePoint now) const {
  JobState state{.spec = spec_,
                 .phase = durable_phase(),
                 .generation = generation_,
                 .restarts_used = budget_.used(),
                 .restart_ages = budget_.ages(now),
                 .strikes = budget_.strikes(),
                 .reason = reason_,
                 .failed = failed_,
                 .ending = ending_,
                 .verdict = verdict_,
                 .missing = missing_,
                 .node_failures = failures_.counts(),
                 .books = books_.state(),
                 .generations = history_.records()};
  if (phase_ == JobPhase::kEnded) return state;
  for (const DatedEnd& dated : ends_) state.ends.push_back(dated.as_of(now));
  keep_likeliest(state.ends);
  for (const auto& [id, member] : members_) {
    if (!member.assignment) continue;
    state.places.push_back({member.node, *member.assignment});
    state.places.back().node.other_addresses.clear();  // the agent repeats them
  }
  return state;
}

void Membership::set_service_address(const std::string& address) {
  if (!is_loopback_host(address)) service_address_ = address;
}

// --- sums ----------------------------------------------------------------------------------------

// Ten thousand nodes send a message each when a generation begins, and a heartbeat every
// second. A loop over all members for each message would take the service minutes. So sums are
// kept.

namespace {

using Tally = Membership::Tally;
constexpr std::array kCounts{&Tally::connected, &Tally::busy,     &Tally::available,
                             &Tally::assigned,  &Tally::finished, &Tally::present,
                             &Tally::quit};

void add(Tally& sum, const Tally& one) {
  for (const auto count : kCounts) sum.*count += one.*count;
}

void subtract(Tally& sum, const Tally& one) {
  for (const auto count : kCounts) sum.*count -= one.*count;
}

}  // namespace

Membership::Tally Membership::tally_of(const Member& member) const {
  Tally one{.connected = member.connected ? 1U : 0U,
            .busy = runs_workers(member) ? 1U : 0U,
            .available = is_available(member) ? 1U : 0U};
  if (!member.assignment) return one;
  const AgentPhase phase = member.status.phase;
  const bool finished = phase == AgentPhase::kFinished && member.status.generation == generation_;
  // A member that has not heard of the generation yet is about to be told.
  const bool quit = !member.awaited && member.status.generation >= member.assignment->generation &&
                    (phase == AgentPhase::kIdle || phase == AgentPhase::kStopping);
  one.assigned = 1;
  one.finished = finished ? 1 : 0;
  one.present = member.awaited ? 0 : 1;
  one.quit = quit ? 1 : 0;
  return one;
}

void Membership::recount(Member& member) {
  subtract(tally_, member.counted);
  member.counted = tally_of(member);
  add(tally_, member.counted);
}

void Membership::recount_all() {
  for (auto& [id, member] : members_) recount(member);
}

Membership::Members::iterator Membership::erase(Members::iterator member) {
  subtract(tally_, member->second.counted);
  const Members::iterator next = members_.erase(member);
  if (members_.empty()) first_lease_.reset();
  return next;
}

bool Membership::has_lease(const Member& member) const {
  return !member.local && !(member.awaited && recall_until_);
}

void Membership::find_first_lease() {
  first_lease_.reset();
  for (const auto& [id, member] : members_) {
    if (!has_lease(member)) continue;
    keep_earlier(first_lease_, member.last_heard + lease_);
  }
}

bool Membership::is_consistent() const {
  Tally sum;
  for (const auto& [id, member] : members_) {
    const Tally one = tally_of(member);
    if (one != member.counted) return false;
    add(sum, one);
    if (phase_ == JobPhase::kEnded || !has_lease(member)) continue;
    if (!first_lease_ || member.last_heard + lease_ < *first_lease_) return false;
  }
  return sum == tally_;
}

// --- admission -----------------------------------------------------------------------------------

std::optional<std::string> Membership::refusal(const Hello& hello) const {
  const JobSpec& theirs = hello.job;
  const auto differs = [this](const std::string& with) {
    return concat(named(), " was started with ", with, ": give every node the same",
                  remembers_
                      ? ", or another --rdzv-id (in etcd, a run that did not end is kept for "
                        "a day)"
                      : "");
  };
  if (theirs.nodes != spec_.nodes) {
    return differs(concat("--nnodes=", spec_.nodes, ", not --nnodes=", theirs.nodes));
  }
  if (theirs.max_restarts != spec_.max_restarts) {
    return differs(concat("--max-restarts=", spec_.max_restarts, ", not ", theirs.max_restarts));
  }
  if (theirs.restart_rules != spec_.restart_rules) {
    return differs("another --restart-window, --no-restart-on or --restart-on-progress");
  }
  if (theirs.on_join != spec_.on_join) return differs("another --on-join");
  if (theirs.node_failures != spec_.node_failures) {
    return differs(concat("--node-failures=", spec_.node_failures, ", not ", theirs.node_failures));
  }
  if (!is_possible(hello.status.generation)) {
    return concat("no service has ever begun generation ", hello.status.generation);
  }
  const std::optional<int> wanted = hello.node.node_rank;
  if (!wanted) return std::nullopt;
  if (*wanted < 0 || *wanted >= spec_.nodes.max) {
    return concat("--node-rank: invalid value '", *wanted, "' (expected 0",
                  spec_.nodes.max > 1 ? " to " + std::to_string(spec_.nodes.max - 1) : "", ")");
  }
  for (const auto& [id, member] : members_) {
    if (id != hello.node.agent_id && member.connected && member.node.node_rank == wanted) {
      return concat("node rank ", *wanted, " is taken by ", member.node.host,
                    ": give each node its own --node-rank");
    }
  }
  return std::nullopt;
}

MembershipOutput Membership::joined(const Hello& hello, bool local, TimePoint now) {
  now_ = now;
  Member& member = members_[hello.node.agent_id];
  const bool is_new = member.node.agent_id.empty();
  const bool was_awaited = member.awaited;
  const TimePoint last_heard = member.last_heard;
  member.node = hello.node;
  member.local = local;
  if (local) local_agent_ = hello.node.agent_id;
  member.connected = true;
  member.awaited = false;
  member.last_heard = now;
  if (is_new) member.checkpoints_seen = checkpoints_;
  recount(member);
  if (has_lease(member)) keep_earlier(first_lease_, now + lease_);
  std::erase(missing_, hello.node.host);
  if (is_new && phase_ != JobPhase::kEnded) {
    note(concat(hello.node.host, " joined ", named(), " with ", hello.node.slots, " slots (",
                presence(), ")"));
  }
  if (recall_until_) recall(member, hello);
  if (!is_new && !was_awaited) note_cut_off(member, hello, last_heard);
  take_status(hello.node.agent_id, hello.status);
  const bool is_directed = std::ranges::any_of(
      out_.directives, [&](const ToAgent& one) { return one.agent_id == hello.node.agent_id; });
  if (!is_directed) direct(*members_.find(hello.node.agent_id));
  return std::exchange(out_, {});
}

void Membership::disconnected(const std::string& agent_id) {
  const auto found = members_.find(agent_id);
  if (found == members_.end()) return;
  Member& member = found->second;
  member.connected = false;
  recount(member);
  // If no workers can be running, the member is forgotten at once. It sends a new Hello when
  // it comes back.
  if (phase_ == JobPhase::kEnded || !runs_workers(member)) erase(found);
}

// --- messages of agents --------------------------------------------------------------------------

MembershipOutput Membership::status(const std::string& agent_id, const AgentStatus& status,
                                    TimePoint now) {
  now_ = now;
  take_status(agent_id, status);
  return std::exchange(out_, {});
}

void Membership::take_status(const std::string& agent_id, const AgentStatus& status) {
  const auto found = members_.find(agent_id);
  if (found == members_.end()) return;
  Member& member = found->second;
  member.last_heard = now_;
  if (!is_possible(status.generation)) return;
  const bool waited = is_available(member);
  const bool is_first = member.status.generation != status.generation;
  const bool was_fit = member.status.unfit.empty();
  const std::string log_trouble = std::move(member.status.log_trouble);
  member.status = status;
  member.status.unfit = clipped(std::move(member.status.unfit), kMaxMessageBytes);
  member.status.log_trouble = clipped(in_one_line(status.log_trouble), kMaxMessageBytes);
  recount(member);
  if (phase_ == JobPhase::kEnded) return;

  if (member.status.log_trouble != log_trouble) note_log_trouble(member);

  if (was_fit && !status.unfit.empty()) take_out_unfit(member);
  if (status.leaving != 0) note_leaving(member, status.leaving);
  const bool current = status.generation == generation_;
  // Only a member with an assignment reports about this generation. For others only the number
  // is the same: an earlier run of the service may have given it to other nodes.
  if (current && member.assignment) {
    // A finished node reports only ends of workers that crashed after their work was done.
    if (is_first) books_.started(now_);
    books_.report(status.times, status.step, now_);
    if (status.phase != AgentPhase::kFinished) collect(member);
    checkpoints_ = std::max(checkpoints_, status.checkpoints);
  } else if (!waited) {
    member.checkpoints_seen = checkpoints_;
  }
  if (phase_ == JobPhase::kRunning && member.assignment) {
    const bool stopped_by_itself =
        current && (status.phase == AgentPhase::kIdle || status.phase == AgentPhase::kStopping);
    const bool has_ended = stopped_by_itself || !ends_.empty();
    const bool by_outage = has_ended && ended_by_outage(member);
    if (!by_outage && stopped_by_itself && ends_.empty()) {
      add_lost_node(
          member, {.kind = EndKind::kNodeLost, .message = "its agent has ended its workers"}, now_);
    }
    if (by_outage) {
      // The generation is already being ended.
    } else if (!ends_.empty()) {
      failed_ = true;
      begin_forming(GenerationEnd::kFailed, "failure");
    } else if (current && !status.snapshots.empty()) {
      end_hang();
    } else if (!current) {
      direct(*found);  // the assignment was lost, or the node runs an older generation
    }
  } else if (runs_workers(member) && status.phase != AgentPhase::kStopping) {
    direct(*found);
  }
  advance();
}

void Membership::heard(const std::string& agent_id, TimePoint now) {
  const auto found = members_.find(agent_id);
  if (found == members_.end()) return;
  Member& member = found->second;
  member.last_heard = now;
  if (now - member.ranks_when > kRanksLast) member.ranks = {};
}

void Membership::take_ranks(const std::string& agent_id, const RankReport& report, TimePoint now) {
  const auto found = members_.find(agent_id);
  if (found == members_.end()) return;
  Member& member = found->second;
  member.ranks = {.generation = report.generation};
  member.ranks_when = now;
  if (!member.assignment || report.generation != generation_) return;
  int next = member.assignment->first_rank.value;
  const int end = std::min(next + member.node.slots, static_cast<int>(kMaxRankRows));
  for (const RankRow& row : report.rows) {
    if (row.rank.value < next || row.rank.value >= end) continue;
    member.ranks.rows.push_back(row);
    next = row.rank.value + 1;
  }
}

MembershipOutput Membership::steps(const std::string& agent_id, const StepReport& report,
                                   TimePoint now) {
  now_ = now;
  for (const std::string& line : slow_search_.take(agent_id, report)) {
    note(named() + ": " + line);
  }
  return std::exchange(out_, {});
}

MembershipOutput Membership::left(const std::string& agent_id, const Leave& leave, TimePoint now) {
  now_ = now;
  const auto found = members_.find(agent_id);
  if (found == members_.end()) return {};
  if (leave.signal == 0) {
    // The reason becomes part of texts that are sent and kept within the same limit, so it is
    // clipped.
    lose(found, NodeLoss::kReported, clipped(leave.reason, kMaxMessageBytes));
  } else {
    const Member member = found->second;
    erase(found);
    if (member.assignment) missing_.push_back(member.node.host);
    note_leaving(member, leave.signal);
  }
  advance();
  return std::exchange(out_, {});
}

// Handles a node that was told to end from outside. A job of fixed size ends, because it
// cannot continue without the node. An elastic job continues with the other nodes and uses no
// budget, unless this service ends together with the node.
void Membership::note_leaving(const Member& member, int signal) {
  if (phase_ == JobPhase::kEnded) return;
  const std::string what = member.node.host + " received " + signal_name(signal);
  // The job does not need a node that is not fit.
  if (!member.status.unfit.empty() && !member.local) return note(what);
  if ((!is_elastic() || member.local) && !ending_) {
    note(what);
    ending_ = stopped_verdict(exit_code_of_signal(signal), what);
  }
  if (phase_ == JobPhase::kRunning) {
    begin_forming(ending_ ? GenerationEnd::kStopped : GenerationEnd::kResized, what);
  }
  if (ending_) books_.stop(now_);
}

// --- time ----------------------------------------------------------------------------------------

MembershipOutput Membership::tick(TimePoint now) {
  now_ = now;
  if (phase_ == JobPhase::kEnded) return {};
  for (auto it = members_.begin(); it != members_.end();) {
    const auto current = it++;
    const Member& member = current->second;
    if (member.local || now < member.last_heard + lease_) continue;
    if (member.awaited && recall_until_) continue;  // settle_recall() judges its absence
    lose(current, NodeLoss::kLeaseExpired, std::string(kSilentFor) + to_text(lease_));
    ++out_.lease_losses;
  }
  find_first_lease();
  advance();
  std::ranges::move(slow_search_.tick(now), std::back_inserter(out_.pass_ons));
  return std::exchange(out_, {});
}

std::optional<TimePoint> Membership::deadline() const {
  if (phase_ == JobPhase::kEnded) return std::nullopt;
  std::optional<TimePoint> earliest = first_lease_;
  keep_earlier(earliest, slow_search_.deadline());
  if (phase_ == JobPhase::kForming) {
    // While a node is ending its workers, nothing is due. Its own supervisor limits that time,
    // and its lease limits the supervisor.
    if (recall_until_) {
      keep_earlier(earliest, recall_until_);
    } else if (last_call_) {
      keep_earlier(earliest, last_call_);
    } else if (!anyone_busy()) {
      if (pause_ > Duration(0) && has_enough()) keep_earlier(earliest, not_before_);
      keep_earlier(earliest, forming_since_ + spec_.join_timeout);
    }
  }
  return earliest;
}

// --- the generation ------------------------------------------------------------------------------

// Returns whether processes of some generation may exist on the member's node.
bool Membership::runs_workers(const Member& member) const {
  // It was told to run the current generation and has not reported on it yet.
  if (member.assignment && member.status.generation < member.assignment->generation) return true;
  return member.status.phase != AgentPhase::kIdle;
}

bool Membership::is_available(const Member& member) const {
  return member.connected && !runs_workers(member) && member.status.leaving == 0 &&
         member.status.unfit.empty();
}

std::vector<Membership::Members::iterator> Membership::candidates() {
  std::vector<Members::iterator> found;
  for (auto it = members_.begin(); it != members_.end(); ++it) {
    if (is_available(it->second)) found.push_back(it);
  }
  return found;
}

// Returns whether a running generation with room is stopped so that a member can join.
bool Membership::someone_may_join_now() const {
  if (tally_.available == 0 || spec_.on_join == OnJoin::kRestart) return false;
  return std::ranges::any_of(members_, [this](const auto& entry) {
    const Member& member = entry.second;
    if (member.assignment || !is_available(member)) return false;
    return spec_.on_join == OnJoin::kNow || checkpoints_ > member.checkpoints_seen;
  });
}

// Returns when the first of the known ends happened, or now.
TimePoint Membership::first_trouble() const {
  TimePoint first = now_;
  for (const DatedEnd& dated : ends_) first = std::min(first, dated.when);
  return first;
}

void Membership::begin_forming(GenerationEnd end, std::string reason) {
  phase_ = JobPhase::kForming;
  const bool is_known = end == GenerationEnd::kFailed && !ends_.empty();
  history_.leave(end, is_known ? describe(ends_.front().end) : reason, first_trouble());
  slow_search_.end();
  books_.leave(ending_ ? TimeCause::kStopped : TimeCause::kRecovery, first_trouble(), now_);
  failure_.reset();
  reason_ = std::move(reason);
  forming_since_ = now_;
  last_call_.reset();
  announced_wait_ = false;
  for (const auto& member : members_) {
    if (runs_workers(member.second)) direct(member);
  }
}

void Membership::lose(Members::iterator it, NodeLoss loss, std::string how) {
  const Member member = it->second;
  erase(it);
  if (!member.assignment) {
    note(member.node.host + " is gone: " + how);
    return;
  }
  WorkerEnd end{.kind = EndKind::kNodeLost, .message = std::move(how), .loss = loss};
  // The longest time between two heartbeats (LeaseTimes::longest_heartbeat).
  if (loss == NodeLoss::kLeaseExpired) end.unseen = lease_ / 4;
  missing_.push_back(member.node.host);
  // The node was alive when it was last heard. Its loss affected other nodes only after that.
  add_lost_node(member, std::move(end), member.last_heard);
  note(describe(ends_.back().end));
  if (phase_ != JobPhase::kRunning) return;
  failed_ = true;
  begin_forming(GenerationEnd::kFailed, "a node was lost");
}

// Handles a running generation: ends the job if all nodes have finished, or takes in a
// newcomer.
void Membership::advance_running() {
  if (tally_.finished == tally_.assigned) {
    Verdict verdict{.success = true, .headline = "every worker ended with 0"};
    const bool was_asked = std::ranges::any_of(members_, [](const auto& entry) {
      return entry.second.assignment && entry.second.status.asked_to_save;
    });
    if (was_asked) {
      verdict.exit_code = to_int(ExitCode::kSaved);
      verdict.headline += ", after they had been asked to save and exit";
      if (has_crashes_at_the_end()) verdict.headline += "; " + describe(ends_.front().end);
    } else if (has_crashes_at_the_end()) {
      verdict = verdict_of_failure();
      set_not_restarted(verdict, "its training is done");
      out_.failures.emplace_back(kind_word(verdict.ends.front()));
      remember_failure(verdict);
    }
    end(std::move(verdict));
  } else if (tally_.finished == 0 && tally_.assigned < static_cast<std::size_t>(spec_.nodes.max) &&
             someone_may_join_now()) {
    begin_forming(GenerationEnd::kResized, spec_.on_join == OnJoin::kCheckpoint
                                               ? "a node joined at a checkpoint"
                                               : "a node joined");
  }
}

// Does all that has become possible: ends the job, judges a failure, forms a generation, or
// makes room for a newcomer.
void Membership::advance() {
  if (phase_ == JobPhase::kForming && recall_until_ && !settle_recall()) return;
  if (phase_ == JobPhase::kRunning) return advance_running();
  if (phase_ == JobPhase::kEnded || anyone_busy()) return;
  if (ending_) return end(std::move(*ending_));
  if (ended_by_outage_ && has_failed_itself()) failed_ = true;
  if (std::exchange(judges_recalled_, false) && has_failed_before_stop()) failed_ = true;
  if (failed_ && !settle_failure()) return;

  const std::size_t here = tally_.available;
  if (!has_enough()) {
    last_call_.reset();
    books_.wait(now_);
    if (generation_ >= Generation(0) && !announced_wait_) {
      announced_wait_ = true;
      for (const auto& member : members_) direct(member);
    }
    if (now_ >= forming_since_ + spec_.join_timeout) {
      end({.cause = VerdictCause::kTooFewNodes,
           .exit_code = to_int(ExitCode::kJoinTimeout),
           .headline = concat("not enough nodes within ", spec_.join_timeout,
                              " (--rdzv-conf=join_timeout): ", presence())});
    }
    return;
  }
  if (pause_ > Duration(0) && now_ < not_before_) return;
  // Later generations are formed at once. Only the first one waits for the last call.
  if (generation_ >= Generation(0) || here >= static_cast<std::size_t>(spec_.nodes.max)) {
    return form();
  }
  if (!last_call_) last_call_ = now_ + spec_.last_call;
  if (now_ >= *last_call_) form();
}

void Membership::form() {
  const std::vector<Members::iterator> here = candidates();
  std::vector<NodeCandidate> nodes;
  for (const auto& it : here) {
    const Member& member = it->second;
    const int failures = failures_.of(member.node.host);
    nodes.push_back({.host = member.node.host,
                     .agent_id = it->first,
                     .wanted_rank = member.node.node_rank,
                     .previous_rank = member.node_rank,
                     .failures = failures < spec_.node_failures ? 0 : failures});
  }
  const std::vector<std::size_t> order = order_nodes(nodes, spec_.nodes.max);
  reason_ += replacements(nodes, order);

  int world_size = 0;
  for (const std::size_t index : order) world_size += here[index]->second.node.slots;
  for (const auto& it : here) {
    it->second.node_rank.reset();
    it->second.assignment.reset();
  }
  // Agents may know generations of an earlier run that this service does not know.
  for (const auto& it : here) generation_ = std::max(generation_, it->second.status.generation);
  generation_ = Generation(generation_.value + 1);
  phase_ = JobPhase::kRunning;
  books_.form(now_);
  history_.form(generation_, static_cast<int>(order.size()), world_size, now_);
  pause_ = Duration(0);
  last_call_.reset();
  ends_.clear();
  ends_known_at_.reset();
  seen_.clear();
  look_ = false;
  missing_.clear();
  checkpoints_ = 0;
  outage_.reset();
  ended_by_outage_ = judges_recalled_ = false;
  for (auto& [id, member] : members_) member.checkpoints_seen = 0;

  const Member& host = here[order.front()]->second;
  Assignment assignment{.generation = generation_,
                        .node_count = static_cast<int>(order.size()),
                        .world_size = world_size,
                        .store = {store_host_of(host), host.status.store_port},
                        .restart_count = budget_.used(),
                        .restarts_left = budget_.left(now_),
                        .reason = reason_,
                        .lease = lease_};
  int first_rank = 0;
  for (std::size_t rank = 0; rank < order.size(); ++rank) {
    const Members::iterator it = here[order[rank]];
    assignment.node_rank = NodeRank(static_cast<int>(rank));
    assignment.first_rank = Rank(first_rank);
    first_rank += it->second.node.slots;
    it->second.node_rank = static_cast<int>(rank);
    it->second.assignment = assignment;
  }
  recount_all();
  search_slow_ranks();
  for (const std::size_t index : order) direct(*here[index]);
  // Nodes without a place are told that a newer generation than theirs exists.
  for (const auto& member : members_) {
    if (!member.second.assignment) direct(member);
  }
  ++out_.generations_formed;
  note(concat(named(), ": generation ", generation_, " with ", world_size, " workers on ",
              counted(order.size(), "node"), " (", reason_, ")"));
}

// Begins to search for slow ranks. All nodes must be of a version that reports steps.
void Membership::search_slow_ranks() {
  std::vector<SlowSearch::Node> nodes(tally_.assigned);
  for (const auto& [id, member] : members_) {
    if (!member.assignment) continue;
    const auto rank = static_cast<std::size_t>(member.assignment->node_rank.value);
    if (!member.node.supports_steps || rank >= nodes.size()) return slow_search_.end();
    nodes[rank] = {.agent_id = id, .host = member.node.host, .workers = member.node.slots};
  }
  slow_search_.begin(generation_, nodes, now_);
}

// Returns the agent that runs the commands of --on-end. An agent whose process runs this service
// runs them even if it leaves before the verdict, so then no other agent may. Otherwise it is the
// lowest node rank that is here and will stay until it is told the verdict.
std::string Membership::choose_end_command_agent() const {
  if (!local_agent_.empty()) return local_agent_;
  static constexpr int kNoRank = std::numeric_limits<int>::max();
  const auto order_of = [](const Member& member) {
    return std::pair(!member.connected, member.node_rank.value_or(kNoRank));
  };
  const Member* chosen = nullptr;
  for (const auto& [id, member] : members_) {
    if (member.awaited || member.status.leaving != 0) continue;
    if (!chosen || order_of(member) < order_of(*chosen)) chosen = &member;
  }
  return chosen ? chosen->node.agent_id : "";
}

void Membership::end(Verdict verdict) {
  verdict.generation = generation_;
  verdict.restarts_used = budget_.used();
  verdict.max_restarts = spec_.max_restarts;
  verdict.times = books_.as_of(now_);
  books_.end(now_);
  history_.leave(end_of(verdict), verdict.headline, now_);
  phase_ = JobPhase::kEnded;
  slow_search_.end();
  ending_.reset();
  last_call_.reset();
  verdict_ = std::move(verdict);
  end_command_agent_ = choose_end_command_agent();
  note(named() + " ended: " + verdict_->headline);
  for (const auto& member : members_) direct(member);
}

std::optional<JobTimes> Membership::times(TimePoint now) const {
  return verdict_ ? verdict_->times : books_.as_of(now);
}

std::optional<TimePoint> Membership::formed_at() const {
  const std::vector<GenerationRecord>& all = history_.records();
  return all.empty() || all.back().number != generation_ ? std::nullopt : all.back().formed;
}

void Membership::continue_books(const Membership& ended) {
  history_ = ended.history_;
  books_ = ended.books_;
  books_.begin_again();
}

// --- the log -------------------------------------------------------------------------------------

// A full disk may be that of all nodes, and may have room now and then. So that it hides no other
// event, kLogNotes events in kLogNotesEvery say it. The nodes themselves always do.
void Membership::note_log_trouble(const Member& member) {
  if (member.status.log_trouble.empty()) return;
  if (now_ >= log_notes_until_) {
    log_notes_until_ = now_ + kLogNotesEvery;
    log_notes_ = 0;
  }
  if (++log_notes_ <= kLogNotes) note(member.node.host + ": " + member.status.log_trouble);
}

void Membership::note(std::string what) {
  events_.push_back({now_, clipped(what, kEventBytes)});
  if (events_.size() > kEventsKept) events_.pop_front();
  out_.log.push_back(std::move(what));
}

}  // namespace ddprun
