// Membership: the state machine of one job. It decides which nodes are in a generation, and
// when.
//
// Owner: JobTable (rendezvous/membership/core/job_table.h), on the service's thread. Pure: no
// clock, no socket, no randomness. Times are arguments of the events; messages are returned.
//
// "Member" is an agent that was admitted. "An earlier run" of the service is one before its
// restart.
//
// Phases
//   kForming   No generation runs. Members that still have workers are told to stop. When all are
//              idle and enough are here, the next generation is formed. If the job was known to an
//              earlier run of the service, the first lease is for recalling it.
//   kRunning   Every member of the generation has been told to run it.
//   kEnded     The verdict is known. Every agent that asks is told it.
//
//   event                 kForming                         kRunning
//   agent joins           member; form if enough           spare; or, with room and if --on-join
//                                                          says so, new forming, no budget
//   checkpoint announced  -                                the same, for nodes that wait for one
//   agent is:
//     stopping, failed    collect (same generation)        -> kForming, uses budget when formed
//     running, hung       collect                          the same; all are told to look first
//     idle                form if all idle and enough      its workers are gone: as a failure
//     finished            told to stop, becomes idle       all finished -> kEnded, success; a
//                                                          failure if a worker crashed at its end
//     not fit             not a candidate any more         -> kForming, no budget; a job of this
//                                                          one node without others -> kEnded
//     leaving             fixed size: -> kEnded when all   fixed size: -> kForming -> kEnded
//                         are idle; elastic: as stopping   elastic: -> kForming, no budget
//   agent leaves          member gone                      after a signal: as leaving; else a
//                                                          lost node
//   lease runs out        member gone; if it was in the    -> kForming, uses budget
//                         last generation: a lost node
//   join deadline         -> kEnded, with a list of nodes  -
//                         that are here or missing
//   last call over        form                             -
//   a person asks for
//     a restart           -                                new forming, no budget
//     a stop              -> kEnded when all are idle      -> kForming -> kEnded
//     a signal            -                                forwarded to the workers
//
// Recalling. Agents report in their Hello the assignment that they were given last. If all
// nodes of the newest generation have come and all still run it, this service takes the
// generation over unchanged. If a node has ended its workers or does not come within a lease,
// the generation is ended and the next one formed. (A lease is longer than an agent's
// patience.) That uses budget unless the outage is the only cause. The budget used before is
// known from the same Hellos.
//
// Silence. A node that was not heard for most of its lease, and comes back without workers,
// was cut off. It counts as a lost node from the time it was last heard. So it is blamed, and
// not the workers of other nodes that failed because of it. If the service runs in an agent
// and every other node was cut off, that agent's node is blamed.
//
// If the service itself did not run (its process was stopped, its machine paused), no worker
// is blamed and leases are extended. A generation that ends because of it uses no budget. This
// is granted once in kFreeAgain, so a service that stops repeatedly cannot restart the workers
// without end.
//
// Restarts. RestartBudget (rendezvous/accounts/core/restart_budget.h) decides whether
// another generation follows a failed one, and after which pause.
//
// Nodes that fail. The node whose worker failed first in a generation is blamed; the failures
// of the others are its consequences. After JobSpec::node_failures such generations the node
// is the last candidate: a spare takes its place if there is one
// (rendezvous/membership/core/node_failures.h, node_order.h).
//
// Invariants (tests/sim checks them whenever workers start, and at the end of each agent)
//   - At most one generation runs. Its ranks are 0..n-1, consecutive on each node. It has from MIN
//     to MAX nodes.
//   - Generation g+1 is formed only when, for every member of g, one of two things is true. The
//     member has reported that nothing of g is left on its node. Or its lease, which is longer than
//     the agent's patience, has run out.
//   - Restarts used never exceed max_restarts. With --restart-window only those in the window
//     count, with --restart-on-progress only those since the last progress.
//   - kForming has a deadline while fewer than MIN nodes are here.
//
// All times come from BootClock of the service's host.
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "rendezvous/accounts/core/generation_history.h"
#include "rendezvous/accounts/core/restart_budget.h"
#include "rendezvous/accounts/core/slow_search.h"
#include "rendezvous/accounts/core/time_books.h"
#include "rendezvous/membership/core/job_state.h"
#include "rendezvous/membership/core/node_failures.h"
#include "rendezvous/protocol/core/control_message.h"

namespace ddprun {

// JobEvent: one of the latest events of a job, with the text of the service's log.
struct JobEvent {
  TimePoint when;
  std::string what;
};

// FailedGeneration: a generation that failed.
struct FailedGeneration {
  TimePoint when;
  Verdict verdict;  // an excerpt, limited by Membership::kEndsOfNewest
};

struct MembershipOutput {
  std::vector<ToAgent> directives;  // what members must run
  std::vector<ToAgent> pass_ons;    // ForwardSignals and StepsDirective
  std::optional<Answer> answer;     // of request()
  std::vector<std::string> log;     // one line each, for the service's log
  // Counts for the metrics.
  int generations_formed = 0;
  int restarts = 0;
  int lease_losses = 0;
  std::vector<std::string> failures;  // kind_word() of the first end of a generation that failed
};

class Membership {
 public:
  // Tally: how many members have each property. For one member each count is 0 or 1.
  struct Tally {
    std::size_t connected = 0;
    std::size_t busy = 0;       // processes of some generation may exist on its node
    std::size_t available = 0;  // could be in the next generation
    std::size_t assigned = 0;   // in the current generation
    std::size_t finished = 0;   // assigned, and in AgentPhase::kFinished
    std::size_t present = 0;    // assigned, and heard in this run of the service
    std::size_t quit = 0;       // assigned, and its workers end or have ended

    friend bool operator==(const Tally&, const Tally&) = default;
  };
  struct Member {
    NodeSpec node;
    AgentStatus status;
    bool local = false;
    bool connected = false;
    bool awaited = false;  // known from an earlier run, and not heard in this one
    TimePoint last_heard;
    std::int64_t checkpoints_seen = 0;     // announced before the member began to wait
    std::optional<int> node_rank;          // in its last generation, if that is the newest one
    std::optional<Assignment> assignment;  // of the current generation
    Tally counted = {};                    // its part of tally_
    RankReport ranks = {};                 // that it has sent last; empty: it is old
    TimePoint ranks_when = {};             // when they came
  };
  using Members = std::map<std::string, Member>;  // by agent id: a fixed order

  static constexpr std::size_t kEventsKept = 32;
  static constexpr std::size_t kEventBytes = 512;
  static constexpr std::size_t kFailuresKept = 16;
  // Limits of a kept failed generation: its ends, and the ends with stderr lines and frames.
  static constexpr std::size_t kEndsOfNewest = 16;
  static constexpr std::size_t kEndsOfOlder = 4;
  static constexpr std::size_t kEndsInWords = 1;
  static constexpr std::size_t kSeenKept = 32;  // lines of the newest failed generation
  // How often the books of a running generation are recorded.
  static constexpr Duration kBooksKeptEvery = std::chrono::minutes(5);
  // For how long the ranks that a node has sent count as present.
  static constexpr Duration kRanksLast = std::chrono::seconds(10);
  // Limits of the events about log files.
  static constexpr int kLogNotes = 6;
  static constexpr Duration kLogNotesEvery = std::chrono::minutes(10);
  // Minimum time between two restarts that use no budget because the service did not run.
  static constexpr Duration kFreeAgain = std::chrono::minutes(10);

  // lease: a member is lost after this time without a message.
  Membership(JobSpec spec, Duration lease, TimePoint now);
  // Continues a job of an earlier run of the service. Its nodes have a lease from now to come, and
  // earlier_run_lasts more: until then that run may answer them.
  Membership(const JobState& state, Duration lease, TimePoint now,
             Duration earlier_run_lasts = Duration(0));

  // Returns why an agent with this Hello may not join, and what would be right. nullopt: it
  // may.
  std::optional<std::string> refusal(const Hello& hello) const;

  // Expects agents, until that time, that an earlier run of the service welcomed: the job may
  // be older than this object. REQUIRES: no generation was formed.
  void expect_past(TimePoint until);

  // Handles a new connection of an agent. REQUIRES: !refusal(hello). `local`: the agent is in
  // the service's own process, so that it has no lease.
  MembershipOutput joined(const Hello& hello, bool local, TimePoint now);
  // Handles the end of an agent's connection. The agent may come back until its lease runs
  // out. This function and those below have no effect for unknown agents.
  void disconnected(const std::string& agent_id);
  // Handles a new status of an agent. Extends its lease.
  MembershipOutput status(const std::string& agent_id, const AgentStatus& status, TimePoint now);
  // Handles a heartbeat. Extends the lease.
  void heard(const std::string& agent_id, TimePoint now);
  // Takes what a node says about its ranks in the newest generation. Drops the rows of other ranks,
  // and those from kMaxRankRows on.
  void take_ranks(const std::string& agent_id, const RankReport& report, TimePoint now);
  // Handles a node's reply to a StepsDirective.
  MembershipOutput steps(const std::string& agent_id, const StepReport& report, TimePoint now);
  // Handles an agent's last message: nothing of the job is left on its node, or it says what
  // is left.
  MembershipOutput left(const std::string& agent_id, const Leave& leave, TimePoint now);
  // Handles a person's request. Answers it, and begins what it asks for or refuses it.
  MembershipOutput request(const UserRequest& request, TimePoint now);
  // Returns the nodes that run, or have run, the workers of the newest generation, or the
  // worker of this rank.
  std::vector<std::string> nodes_of(std::optional<Rank> rank) const;
  // Reports that the service's process did not run for that time, until now. It has received
  // no messages in that time. Call it before all other functions for the current event.
  void was_held_up(Duration time, TimePoint now);
  // Handles the passing of time. Call it at deadline(); other times do no harm.
  MembershipOutput tick(TimePoint now);

  // Returns when tick() may have something to do. It is never later than that time. nullopt:
  // not before another event.
  std::optional<TimePoint> deadline() const;

  // Sets the service's own address as other hosts see it. It replaces the address of an agent
  // that reached the service through a loopback address, if that agent's node hosts the store.
  // No effect for a loopback address, which is what agents on the service's host use.
  void set_service_address(const std::string& address);

  // Returns what another service needs to continue this job. Agents repeat what they know of a
  // generation. The rest changes only when landmark() changes.
  JobState state(TimePoint now) const;
  struct Landmark {
    JobPhase phase;
    Generation generation;
    int restarts_used;
    bool failed;
    bool ending;
    std::size_t places;  // nodes that may run the newest generation; 0 while it is recalled
    std::int64_t books;  // counts the periods of kBooksKeptEvery in which the nodes were heard

    friend bool operator==(const Landmark&, const Landmark&) = default;
  };
  Landmark landmark() const;

  JobPhase phase() const { return phase_; }
  Generation generation() const { return generation_; }
  const JobSpec& spec() const { return spec_; }
  int restarts_used() const { return budget_.used(); }
  const Members& members() const { return members_; }
  std::size_t connected_count() const { return tally_.connected; }
  // Returns whether no member is here and no generation was ever formed. The next agent will
  // repeat all that is known.
  bool is_deserted() const {
    return members_.empty() && phase_ == JobPhase::kForming && generation_ < Generation(0) &&
           !recall_until_;
  }
  // Returns whether the cached sums agree with the members; for tests. The sums avoid a loop
  // over all members at each event.
  bool is_consistent() const;
  const std::optional<Verdict>& verdict() const { return verdict_; }
  // Returns the last kEventsKept events, the oldest first. Each has at most kEventBytes.
  const std::deque<JobEvent>& events() const { return events_; }
  // Returns where the job's time went, up to now. A job that has ended has its final times;
  // nullopt: an older version has recorded its end.
  std::optional<JobTimes> times(TimePoint now) const;
  // Continues the books and the history of an ended job, which begins again as this one.
  // REQUIRES: no generation was formed.
  void continue_books(const Membership& ended);
  // Returns the latest generations, the oldest first: when and why they ended.
  const std::vector<GenerationRecord>& generations() const { return history_.records(); }
  // Returns how many ranks of the generation make the others wait now.
  std::size_t slow_ranks() const { return slow_search_.slow_ranks(); }
  // Returns on what its ranks spend their steps; nullopt: none reports it.
  std::optional<StepLimits::Summary> step_shares() const { return slow_search_.step_shares(); }
  // Returns since when the service has known the job, also in earlier runs with kept state.
  TimePoint known_since() const { return books_.begun(); }
  // Returns when the newest generation was formed. nullopt: never, or not known.
  std::optional<TimePoint> formed_at() const;
  // Returns the last kFailuresKept failed generations in this run of the service, the oldest first.
  const std::deque<FailedGeneration>& failed_generations() const { return failed_generations_; }

 private:
  void note(std::string what);
  void note_log_trouble(const Member& member);
  void search_slow_ranks();
  void take_status(const std::string& agent_id, const AgentStatus& status);
  // Updates the sums. Call it after each change of a member that they count, before they are
  // read.
  Tally tally_of(const Member& member) const;
  void recount(Member& member);
  void recount_all();
  Members::iterator erase(Members::iterator member);
  bool has_lease(const Member& member) const;
  void find_first_lease();

  bool anyone_busy() const { return tally_.busy > 0; }
  bool has_enough() const { return tally_.available >= static_cast<std::size_t>(spec_.nodes.min); }
  bool is_elastic() const { return spec_.nodes.min != spec_.nodes.max; }
  bool runs_workers(const Member& member) const;
  bool is_available(const Member& member) const;
  std::vector<Members::iterator> candidates();
  bool someone_may_join_now() const;

  void collect(const Member& member);
  void note_cut_off(const Member& member, const Hello& hello, TimePoint last_heard);
  bool ended_by_outage(const Member& member);
  bool has_failed_itself() const;
  bool has_failed_before_stop() const;
  void add_lost_node(const Member& member, WorkerEnd end, TimePoint when);
  void take_out_unfit(Member& member);
  void blame_cut_off_service();
  void take_down(const WorkerEnd& end, TimePoint when);
  void recall(Member& member, const Hello& hello);
  JobPhase durable_phase() const;
  bool settle_recall();
  std::vector<WorkerEnd> give_up_awaited(const std::set<NodeRank>& here);
  void take_over();
  void begin_forming(GenerationEnd end, std::string reason);
  TimePoint first_trouble() const;
  void lose(Members::iterator member, NodeLoss loss, std::string how);
  void note_leaving(const Member& member, int signal);
  void stop_for(const UserRequest& request);
  void restart_for(const UserRequest& request);
  void pass_on_for(const UserRequest& request);
  void look_for_output(const UserRequest& request, Answer& answer) const;
  std::string no_such_rank(Rank rank) const;
  void remember_failure(Verdict verdict);
  void advance();
  void advance_running();
  void form();
  std::string choose_end_command_agent() const;
  void end(Verdict verdict);
  bool settle_failure();
  bool has_crashes_at_the_end();
  void take_down_who_left();
  void put_cause_first();
  std::vector<WorkerSnapshot> snapshots() const;
  void end_hang();
  void judge_hang();
  std::optional<std::int64_t> reached() const;
  bool hangs_on_one_node() const;
  void blame(const WorkerEnd& first);
  std::string blame_of(const std::string& host) const;
  Verdict verdict_of_failure() const;
  std::string store_host_of(const Member& member) const;
  Assignment part_of(const Member& member) const;
  ServiceMessage directive_for(const Member& member) const;
  void direct(const Members::value_type& member);
  std::string named() const { return "job '" + spec_.id + "'"; }
  std::string words_of_pause() const;
  std::string presence() const;
  std::string missing() const;
  std::string unfit() const;
  std::string why_it_waits(const Member& member) const;

  JobSpec spec_;
  Duration lease_;
  TimePoint now_;         // of the event that is being handled
  MembershipOutput out_;  // what it has led to so far; empty between events
  Members members_;
  Tally tally_;
  std::optional<TimePoint> first_lease_;  // no member's lease runs out before this time
  JobPhase phase_ = JobPhase::kForming;
  Generation generation_{-1};
  RestartBudget budget_;
  TimeBooks books_;
  GenerationHistory history_;
  SlowSearch slow_search_;
  Duration pause_{};      // after quick failures, before the next generation is formed
  TimePoint not_before_;  // end of that pause
  std::string reason_ = "start";
  TimePoint forming_since_;
  std::optional<TimePoint> last_call_;     // then the first generation is formed, with MIN nodes
  std::optional<TimePoint> recall_until_;  // the job of an earlier run is being recalled
  int recalled_nodes_ = 0;                 // of the generation that is recalled; 0: not known
  bool recall_broken_ = false;    // that generation cannot continue; all nodes are told to stop
  bool was_forming_ = false;      // the earlier run had begun to end the generation
  bool judges_recalled_ = false;  // its ends show whether it failed, once all are known
  bool remembers_ = false;        // the job's past is known from its JobState
  bool announced_wait_ = false;   // the remaining nodes were told to wait for others
  bool failed_ = false;           // the generation being ended failed, so it uses budget
  struct Outage {                 // was_held_up()
    TimePoint began;
    TimePoint ended;
  };
  std::optional<Outage> outage_;        // the last one in this generation
  bool ended_by_outage_ = false;        // the generation is being ended because of it
  std::optional<TimePoint> last_free_;  // when a generation last ended so without using budget
  std::optional<Verdict> ending_;       // the job ends with this once every member is idle
  bool at_once_ = false;                // stop without grace, as a person has asked for
  bool look_ = false;                   // it hung: every agent must report what its workers do
  std::vector<std::string> seen_;       // what the workers did
  std::vector<DatedEnd> ends_;
  std::optional<TimePoint> ends_known_at_;  // ends from a JobState: those of agents are later
  std::int64_t checkpoints_ = 0;            // announced in the current generation
  NodeFailures failures_;
  std::vector<std::string> missing_;  // hosts of the newest generation that are gone
  std::string service_address_;
  std::optional<Verdict> verdict_;
  std::string local_agent_;         // its process runs this service; empty: none has joined
  std::string end_command_agent_;   // see choose_end_command_agent(); set in kEnded
  std::optional<Verdict> failure_;  // of the generation before the newest one; has ends
  std::deque<JobEvent> events_;
  TimePoint log_notes_until_;  // when log_notes_ ends to count
  int log_notes_ = 0;
  std::deque<FailedGeneration> failed_generations_;
};

}  // namespace ddprun
