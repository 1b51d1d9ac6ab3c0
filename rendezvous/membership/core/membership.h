// Membership: the state machine of one job. It decides who is in a generation, and when.
//
// Owner: JobTable (rendezvous/membership/core/job_table.h), on the service's thread. Pure: no clock, no
// socket, no randomness; time comes in with each event, and what is to be sent comes out.
//
// Phases
//   kForming   No generation runs. Members that still have workers are told to stop; when every one
//              is idle and enough are here, the next generation is formed. In a job that had an
//              earlier life, in a service that is gone, the first lease is for recalling it.
//   kRunning   Every member of the generation has been told to run it.
//   kEnded     The verdict is known and is told to everyone who asks.
//
//   event                 kForming                         kRunning
//   agent joins           member; form if enough           spare; or, with room and if --on-join
//                                                          says so, new forming, no budget
//   checkpoint announced  -                                the same, for those who wait for one
//   agent is:
//     stopping, failed    collect (same generation)        -> kForming, uses budget when formed
//     running, hung       collect                          the same; all are told to look first
//     idle                form if all idle and enough      its workers are gone: as a failure
//     finished            told to stop, becomes idle       all finished -> kEnded, success; a
//                                                          failure where one crashed at its end
//     leaving             fixed size: -> kEnded when all   fixed size: -> kForming -> kEnded
//                         are idle; elastic: as stopping   elastic: -> kForming, no budget
//   agent leaves          member gone                      cannot be: it was leaving before
//   lease runs out        member gone; was it in the last  -> kForming, uses budget
//                         generation: a lost node
//   join deadline         -> kEnded, saying who is here    -
//                         and who is missing
//   last call over        form                             -
//   a person asks for
//     a restart           -                                new forming, no budget
//     a stop              -> kEnded when all are idle      -> kForming -> kEnded
//     a signal            -                                passed on
//
// Recalling. Agents say in their Hello what they were told last. When all nodes of the newest
// generation have come and all still run it, this service takes it over as it is. When one of them
// has ended its workers, or does not come within a lease, which is longer than its patience, the
// generation is ended and the next one formed, which uses budget unless all there was is the
// outage. What was used before is known from the same Hellos.
//
// Silence. A node that was not heard for most of its lease and comes back without workers has been
// cut off: it is a lost node that dates from when it was last heard, so that it is blamed rather than
// the workers of others that noticed it. Where the service lives in an agent and every other node was
// cut off, that agent's node is the one that is blamed. Where the service itself did not run (its
// process was stopped, its machine paused) no worker is blamed, leases begin anew, and a generation
// that ends because of it uses no budget. That is granted once in kFreeAgain, so a service that
// stops again and again cannot restart the workers for ever.
//
// Restarts. Whether a generation that failed is followed by another one, and after which pause, says
// the RestartBudget (rendezvous/membership/core/restart_budget.h).
//
// Nodes that fail. The node whose worker failed first in a generation is blamed; the others are its
// victims. After JobSpec::node_failures such generations it is the last candidate: a spare takes its
// place where there is one (rendezvous/membership/core/node_failures.h, node_order.h).
//
// Invariants (tests/sim checks them whenever workers start, and at the end of each agent)
//   - At most one generation runs; its ranks are 0..n-1, consecutive per node, n between MIN and
//     MAX nodes.
//   - Generation g+1 is formed only when every member of g has said that nothing of g is left
//     there, or its lease, which is longer than the agent's own patience, has run out.
//   - Restarts used never exceed max_restarts, with --restart-window those of the window.
//   - Every phase but kRunning has a deadline while fewer than MIN nodes are here.
//
// Time comes from BootClock of the service's host only.
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "rendezvous/membership/core/job_state.h"
#include "rendezvous/membership/core/node_failures.h"
#include "rendezvous/membership/core/restart_budget.h"
#include "rendezvous/protocol/core/control_message.h"

namespace ddprun {

struct MembershipOptions {
  Duration lease = kDefaultLease;  // of a member that has not been heard
};

// Something to tell one agent.
struct Addressed {
  std::string agent_id;
  Directive directive;
};

// One of the last things that happened in a job, in the words of the service's log.
struct JobEvent {
  TimePoint when;
  std::string what;
};

// A generation that failed.
struct FailedGeneration {
  TimePoint when;
  Verdict verdict;  // an excerpt: Membership::kEndsOfNewest
};

struct MembershipOutput {
  struct PassOnTo {
    std::string agent_id;
    ForwardSignal what;
  };
  std::vector<Addressed> tells;
  std::vector<PassOnTo> pass_ons;
  std::optional<Answer> answer;  // of request()
  std::vector<std::string> log;  // one line each, for the service's log
  // What happened, for those who count.
  int generations_formed = 0;
  int restarts = 0;
  int lease_losses = 0;
  std::vector<std::string> failures;  // kind_word() of the first end of a generation that failed
};

class Membership {
 public:
  // How many members are so; of one member: 0 or 1 of each.
  struct Tally {
    std::size_t connected = 0;
    std::size_t busy = 0;       // processes of some generation may exist on its node
    std::size_t available = 0;  // could be in the next generation
    std::size_t assigned = 0;   // in the current generation
    std::size_t finished = 0;   // of these, all workers ended well
    std::size_t present = 0;    // assigned, and heard in this life of the service
    std::size_t quit = 0;       // of these, the workers end or have ended

    friend bool operator==(const Tally&, const Tally&) = default;
  };
  struct Member {
    NodeSpec node;
    AgentStatus status;
    bool local = false;
    bool connected = false;
    bool awaited = false;  // known from an earlier life, and not heard in this one
    TimePoint last_heard;
    std::int64_t checkpoints_seen = 0;  // that were announced before it began to wait
    std::optional<int> node_rank;       // in the last generation it was in, if that is the latest
    std::optional<Assignment> assignment;  // of the current generation
    Tally counted = {};                    // what it adds to the sum that is kept of all
  };
  using Members = std::map<std::string, Member>;  // by agent id: a fixed order

  static constexpr std::size_t kEventsKept = 32;
  static constexpr std::size_t kEventBytes = 512;
  static constexpr std::size_t kFailuresKept = 16;
  // Of a failed generation that is kept: its ends, and those with last lines and frames.
  static constexpr std::size_t kEndsOfNewest = 16;
  static constexpr std::size_t kEndsOfOlder = 4;
  static constexpr std::size_t kEndsInWords = 1;
  static constexpr std::size_t kSeenKept = 32;  // of the newest
  // Between two restarts that use no budget because the service did not run.
  static constexpr Duration kFreeAgain = std::chrono::minutes(10);

  Membership(JobSpec spec, MembershipOptions options, TimePoint now);
  // Goes on with a job of an earlier life of the service: its nodes have a lease from now to come.
  Membership(const JobState& state, MembershipOptions options, TimePoint now);

  // Why an agent with this Hello may not join, in words that say what would be right; nullopt if it
  // may.
  std::optional<std::string> refusal(const Hello& hello) const;

  // The job may be older than this object: agents that were welcomed by a service that is gone may
  // come until then. REQUIRES: no generation was formed.
  void expect_past(TimePoint until);

  // An agent is connected (again). REQUIRES: !refusal(hello). `local`: it lives in the service's
  // own process, so that it has no lease to lose.
  MembershipOutput joined(const Hello& hello, bool local, TimePoint now);
  // Its connection is gone; it has its lease's rest to come back. No effect on unknown agents,
  // here and below.
  void disconnected(const std::string& agent_id);
  // What is on its node has changed. Prolongs its lease.
  MembershipOutput status(const std::string& agent_id, const AgentStatus& status, TimePoint now);
  // A heartbeat: prolongs its lease.
  void heard(const std::string& agent_id, TimePoint now);
  // Its last word: nothing of the job is left on its node, or it says what is.
  MembershipOutput left(const std::string& agent_id, const Leave& leave, TimePoint now);
  // A person asks for something: it is answered, and begun or refused.
  MembershipOutput request(const UserRequest& request, TimePoint now);
  // Whose nodes run the workers of the newest generation, or have run them; or the worker of this
  // rank.
  std::vector<std::string> nodes_of(std::optional<Rank> rank) const;
  // The service's process did not run for so long, until now: whatever was said to it then was not
  // heard. To be called before everything else that happens now.
  void was_held_up(Duration time, TimePoint now);
  // Time has passed: to be called at deadline(), harmless at other times.
  MembershipOutput tick(TimePoint now);

  // When tick() may have something to do, never later than it has; nullopt: not before another
  // event.
  std::optional<TimePoint> deadline() const;

  // Where agents that reached the service through a loopback address can be reached from other
  // hosts: the service's own address as the others see it. Used when such a node hosts the store.
  // No effect with a loopback address, which is how agents beside the service see it.
  void set_service_address(const std::string& address);

  // What another service would need to go on with this job. Agents repeat what they have to say
  // about a generation; the rest of it changes only when landmark() does.
  JobState state(TimePoint now) const;
  struct Landmark {
    JobPhase phase;
    Generation generation;
    int restarts_used;
    bool failed;
    bool ending;
    std::size_t places;  // nodes that may run the newest generation; 0 while it is recalled

    friend bool operator==(const Landmark&, const Landmark&) = default;
  };
  Landmark landmark() const;

  JobPhase phase() const { return phase_; }
  Generation generation() const { return generation_; }
  const JobSpec& spec() const { return spec_; }
  int restarts_used() const { return budget_.used(); }
  const Members& members() const { return members_; }
  std::size_t connected_count() const { return tally_.connected; }
  // Nobody is here, and no generation was ever formed: all there is to know is what the next one to
  // come will say again.
  bool is_deserted() const {
    return members_.empty() && phase_ == JobPhase::kForming && generation_ < Generation(0) &&
           !recall_until_;
  }
  // For tests: what is kept so that no event of one member makes us look at all the others agrees
  // with the members.
  bool is_consistent() const;
  const std::optional<Verdict>& verdict() const { return verdict_; }
  // The last kEventsKept, the oldest first; of each at most kEventBytes.
  const std::deque<JobEvent>& events() const { return events_; }
  // Since when this service knows of the job.
  TimePoint known_since() const { return known_since_; }
  // When the newest generation was formed; nullopt: never, or in an earlier life.
  const std::optional<TimePoint>& formed_at() const { return formed_at_; }
  // The last kFailuresKept in this life of the service, the oldest first.
  const std::deque<FailedGeneration>& failed_generations() const { return failed_generations_; }

 private:
  void note(std::string what, TimePoint now, MembershipOutput& out);
  // To be called after each change of a member that counts, before sums are looked at.
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
  bool may_join_now(const Member& member) const;
  bool is_last_candidate(const Member& member) const;
  std::vector<Members::iterator> candidates();
  bool someone_may_join_now() const;

  void collect(const Member& member, TimePoint now);
  void note_cut_off(const Member& member, const Hello& hello, TimePoint last_heard, TimePoint now);
  bool ended_by_outage(const Member& member, TimePoint now, MembershipOutput& out);
  bool has_failed_itself() const;
  bool has_failed_before_stop() const;
  void add_lost_node(const Member& member, WorkerEnd end, TimePoint when);
  void blame_cut_off_service();
  void take_down(const WorkerEnd& end, TimePoint when, TimePoint now);
  void recall(Member& member, const Hello& hello);
  JobPhase durable_phase() const;
  bool settle_recall(TimePoint now, MembershipOutput& out);
  std::vector<WorkerEnd> give_up_awaited(const std::set<NodeRank>& here);
  void take_over(TimePoint now, MembershipOutput& out);
  void begin_forming(std::string reason, TimePoint now, MembershipOutput& out);
  void lose(Members::iterator member, std::string how, TimePoint now, MembershipOutput& out);
  void note_leaving(const Member& member, int signal, TimePoint now, MembershipOutput& out);
  void stop_for(const UserRequest& request, TimePoint now, MembershipOutput& out);
  void restart_for(const UserRequest& request, TimePoint now, MembershipOutput& out);
  void pass_on_for(const UserRequest& request, MembershipOutput& out);
  void look_for_output(const UserRequest& request, Answer& answer) const;
  std::string no_such_rank(Rank rank) const;
  void remember_failure(Verdict verdict, TimePoint now);
  void advance(TimePoint now, MembershipOutput& out);
  void advance_running(TimePoint now, MembershipOutput& out);
  void form(TimePoint now, MembershipOutput& out);
  void end(Verdict verdict, TimePoint now, MembershipOutput& out);
  bool settle_failure(TimePoint now, MembershipOutput& out);
  bool has_crashes_at_the_end(TimePoint now);
  void take_down_who_left(TimePoint now);
  void put_cause_first(TimePoint now);
  std::vector<WorkerSnapshot> snapshots() const;
  void end_hang(TimePoint now, MembershipOutput& out);
  void judge_hang(TimePoint now);
  std::optional<std::int64_t> reached() const;
  bool hangs_on_one_node() const;
  void blame(const WorkerEnd& first, TimePoint now, MembershipOutput& out);
  std::string blame_of(const std::string& host) const;
  Verdict verdict_of_failure() const;
  std::string store_host_of(const Member& member) const;
  Assignment part_of(const Member& member) const;
  Directive directive_for(const Member& member) const;
  void tell(const Members::value_type& member, MembershipOutput& out) const;
  std::string words_of_pause() const;
  std::string presence() const;
  std::string missing() const;
  std::string why_it_waits(const Member& member) const;

  JobSpec spec_;
  MembershipOptions options_;
  Members members_;
  Tally tally_;
  std::optional<TimePoint> first_lease_;  // no member's lease runs out before
  JobPhase phase_ = JobPhase::kForming;
  Generation generation_{-1};
  RestartBudget budget_;
  Duration pause_{};      // after quick failures, before the next one is formed
  TimePoint not_before_;  // when that pause is over
  std::string reason_ = "start";
  TimePoint forming_since_;
  TimePoint known_since_;
  std::optional<TimePoint> formed_at_;     // the newest generation; nullopt: in an earlier life
  std::optional<TimePoint> last_call_;     // the first generation is formed then, if MIN are here
  std::optional<TimePoint> recall_until_;  // the job's earlier life is being recalled
  int recalled_nodes_ = 0;                 // of the generation that is recalled; 0: not known
  bool recall_broken_ = false;             // it cannot go on, and everyone is told to stop
  bool was_forming_ = false;               // the earlier life had begun to end the generation
  bool judges_recalled_ = false;           // its ends say whether it failed, once all are known
  bool remembers_ = false;                 // the job's past is known from its JobState
  bool told_to_wait_ = false;              // those who are left know that others must come first
  bool failed_ = false;            // the generation that is being ended failed: budget is due
  struct Outage {                  // was_held_up()
    TimePoint began;
    TimePoint ended;
  };
  std::optional<Outage> outage_;  // the last one in this generation
  bool ended_by_outage_ = false;  // the generation is being ended for it
  std::optional<TimePoint> last_free_;  // when a generation last ended so without using budget
  std::optional<Verdict> ending_;  // the job ends with this once every member is idle
  bool at_once_ = false;           // without grace, because a person has asked for it
  bool look_ = false;              // it hung: every agent is to say what its workers do
  std::vector<std::string> seen_;  // what they did
  std::vector<DatedEnd> ends_;
  std::optional<TimePoint> ends_known_at_;  // from a JobState: what agents tell came after them
  std::int64_t checkpoints_ = 0;            // announced in the current generation
  NodeFailures failures_;
  std::vector<std::string> missing_;  // hosts of the newest generation that are gone
  std::string service_address_;
  std::optional<Verdict> verdict_;
  std::optional<Verdict> failure_;  // of the generation before the newest one
  std::deque<JobEvent> events_;
  std::deque<FailedGeneration> failed_generations_;
};

}  // namespace ddprun
