// JobTable: the rendezvous service without its sockets. It holds many jobs, each a Membership.
// Messages of connections come in, messages to them come out.
//
// Owner: RendezvousServer (rendezvous/service/server.h), on its one thread. Pure: connections
// are numbers, times are arguments.
//
// A connection's first message must be a Hello of this protocol version. The answer is a
// Welcome and a Directive, or a Refused and the end of the connection. A second connection of
// the same agent replaces the first. A job that has ended keeps its verdict for its agents
// that come back late (at most kEndedJobsKept such jobs are kept). An agent that was never in
// the job begins a new job of the same id. The instance tells the two apart: a Welcome
// contains it, and later Hellos repeat it. An instance that this service did not create is
// from before a restart of the service. That job is recalled
// (rendezvous/membership/core/membership.h).
//
// If munge proves users, a job belongs to the user whose agent came first. Agents of other
// users, except root, are not admitted and do not learn its verdict. The id is free again when
// the job has ended.
//
// A UserRequest may come on a connection of an agent, or as the first message of a connection
// without a Hello (rendezvous/protocol/core/user_request.h). The latter is closed after its
// Answer, with two exceptions. After an accepted stop, its End comes when the job has ended;
// at most kWatchersKept connections wait for one. A connection may also read the output of
// workers (rendezvous/membership/core/output_inquiries.h), one request at a time.
//
// State that must survive a restart of the service is returned as changes, numbered from 1. A
// message names the change that must be durable before it is sent. A service without a disk
// sends at once.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/result.h"
#include "rendezvous/auth/core/handshake_turns.h"
#include "rendezvous/membership/core/lease.h"
#include "rendezvous/membership/core/membership.h"
#include "rendezvous/membership/core/output_inquiries.h"

namespace ddprun {

struct ServiceOptions {
  static constexpr int kBeatTimes = 20;  // moments in a heartbeat interval; see next_beat_in()

  LeaseTimes times;
  Duration hello_timeout = std::chrono::seconds(10);     // of a connection without a Hello
  std::size_t handshake_turns = HandshakeTurns::kTurns;  // TLS handshakes of an address at a time
  bool embedded = false;
  std::string host;         // the service's host, as agents name it
  std::string only_job;     // the service refuses agents of other jobs; empty: it takes all
  std::string cluster_job;  // the scheduler's job of only_job. Other jobs may have the same id
  // The owner of all jobs, whichever agent comes first. Set if one user runs the service privately.
  std::optional<UserId> owner;
  std::string service_id;  // random; prefix of every instance
  // The calendar time at which BootClock was zero. Times in changes are those of the calendar, so
  // that a service on another host, or after a reboot, can continue the books of jobs.
  Duration calendar{};
  // An earlier run of this service may answer agents for this time after a later run has begun.
  Duration earlier_run_lasts{};
  // Until then, agents may come that an earlier run of this service welcomed and that this one does
  // not know. New jobs wait for them that long. nullopt: there are no such agents.
  std::optional<TimePoint> earlier_agents_until;

  // Returns whether the service runs for the agent's job alone. An agent that was given the address
  // by hand has no cluster_job.
  bool is_own_of(const Hello& hello) const {
    return !only_job.empty() && hello.job.id == only_job &&
           (hello.cluster_job.empty() || hello.cluster_job == cluster_job);
  }
};

// Returns the time until the next heartbeat of an agent that was heard now. It is about an
// interval, and ends at one of kBeatTimes moments of the interval that are the same for all
// agents. So a service with many agents handles many heartbeats with one wakeup. Wakeups are
// most of the cost of heartbeats.
Duration next_beat_in(Duration interval, TimePoint now);

struct ServiceOutput {
  using Send = InquiryOutput::Send;
  struct Change {
    std::uint64_t number;
    StateChange what;
  };
  // An Answer to be sent with a status page of this job, or of all jobs if `job` is empty.
  struct Page {
    AgentConnectionId connection;
    std::uint64_t number = 0;
    std::string job;
    bool last = false;  // as in Send
  };
  std::vector<Change> changes;
  std::vector<Send> sends;
  std::vector<Page> pages;
  std::vector<AgentConnectionId> closes;  // to close after their messages have been sent
  std::vector<std::string> log;
  // Also log lines, but unauthenticated clients can cause any number of them.
  std::vector<std::string> provoked;
};

// JobCounts: counts since the table was made, of all its jobs, including forgotten ones.
struct JobCounts {
  std::uint64_t generations_formed = 0;
  std::uint64_t restarts = 0;
  std::uint64_t lease_losses = 0;
  std::uint64_t refusals = 0;  // of agents
  std::uint64_t jobs_succeeded = 0;
  std::uint64_t jobs_failed = 0;                  // because of their workers or nodes
  std::uint64_t jobs_stopped = 0;                 // by a person, or by a signal to a node
  std::map<std::string, std::uint64_t> failures;  // of generations, by kind_word()
};

class JobTable {
 public:
  static constexpr std::size_t kEndedJobsKept = 1000;
  static constexpr std::size_t kRecallsKept = 10'000;
  static constexpr std::size_t kOverKept = 1000;
  static constexpr std::size_t kWatchersKept = 1000;
  static constexpr Duration kWatchedFor = std::chrono::seconds(10);
  // Agents send their ranks once a second. If all watched jobs have more ranks than this, each
  // agent sends them less often, so that as many come; at last every kRanksLeastEvery.
  static constexpr std::size_t kRanksEachSecond = 2000;
  static constexpr Duration kRanksLeastEvery = std::chrono::seconds(4);

  explicit JobTable(ServiceOptions options);
  // Continues where an earlier run of the service has ended.
  JobTable(ServiceOptions options, const ServiceState& past, TimePoint now);

  // Origin: where a message comes from.
  struct Origin {
    AgentConnectionId connection;
    bool local = false;               // the agent is in this process
    std::string service_address;      // numeric, the service's end; empty for a local agent
    std::string peer_address;         // numeric; the other end
    std::optional<UserId> user = {};  // proved by munge; nullopt: otherwise or not proved
  };
  // Handles a message: answers or refuses it. A message that a codec accepts can only affect
  // its own job.
  ServiceOutput receive(const Origin& origin, const AgentMessage& message, TimePoint now);
  // Reports that a person looks at this job, or at all jobs if `job` is empty. For kWatchedFor the
  // answers to heartbeats ask its agents for their ranks.
  void watched(const std::string& job, TimePoint now);
  // Takes the ranks of an agent in this process, which sends no heartbeats.
  void take_ranks(AgentConnectionId connection, const RankReport& report, TimePoint now);
  // Returns whether the job was looked at within kWatchedFor; with an empty `job`, at all
  // jobs.
  bool is_watched(const std::string& job, TimePoint now) const;
  // Handles the end of a connection. No effect if it never sent a Hello or was replaced.
  ServiceOutput disconnected(AgentConnectionId connection, TimePoint now);
  // Returns whether this connection reads the output of workers. If so, call all_sent()
  // whenever all messages to it have been sent.
  bool is_reader(AgentConnectionId connection) const { return inquiries_.is_reader(connection); }
  ServiceOutput all_sent(AgentConnectionId connection, TimePoint now);
  // Handles the passing of time. Call it at deadline(); other times do no harm.
  ServiceOutput tick(TimePoint now);
  // Reports that the service's process runs. After its first call, call it at least every
  // pulse_period(). If no function was called for longer, the process did not run, and no node
  // is lost for that.
  ServiceOutput pulse(TimePoint now);
  Duration pulse_period() const {
    return std::min<Duration>(std::chrono::seconds(1), options_.times.lease / 5);
  }
  // Returns when tick() has something to do; nullopt: not before another event.
  std::optional<TimePoint> deadline() const;

  // Stops the admission of jobs, and of agents that are not in a job already. They are told
  // why, and they retry. nullopt: admits them again.
  void close_admission(std::optional<std::string> why) { closed_ = std::move(why); }
  const std::optional<std::string>& why_closed() const { return closed_; }
  // Reports that all changes up to this number are durable; 0 at first. An ended job is
  // replaced only after its end is durable. A service without a disk never calls it.
  void note_durable(std::uint64_t number) { durable_ = number; }
  // Forgets the jobs that were begun after that change: the disk has refused them, and no
  // agent was told of them. Their agents retry. The verdicts of jobs that they have replaced
  // are not restored: an agent that was disconnected when such a verdict was sent begins a new
  // job.
  ServiceOutput withdraw_after(std::uint64_t after, const std::string& why);
  // Returns messages that tell every agent, and every reader of output, to expect silence from
  // this service for a while.
  ServiceOutput farewell(const std::string& why) const;

  // Returns whether no job has a connected agent. An embedded service may end then.
  bool is_idle() const { return agents_.empty(); }
  // Returns whether an agent was welcomed on this connection.
  bool has_agent(AgentConnectionId connection) const { return agents_.contains(connection); }
  // Returns the job of that id, also if it has ended; null: not known. Valid until the next
  // call.
  const Membership* find(const std::string& job) const;
  // Returns all known jobs. Running and forming jobs come first, by id. Then come ended jobs,
  // the last one first, also across restarts of the service. Valid until the next call of
  // another function.
  std::vector<const Membership*> jobs() const;
  const JobCounts& counts() const { return counts_; }
  const ServiceOptions& options() const { return options_; }

 private:
  struct Job {
    std::string instance;
    std::string former_instance;  // from before a service restart, if it became known later
    Membership membership;
    std::optional<UserId> owner = {};
    std::optional<std::tuple<Membership::Landmark, std::string, std::optional<UserId>>> recorded =
        {};                          // at the last change
    std::uint64_t first_change = 0;  // 0: made by an earlier run of the service
    std::uint64_t last_change = 0;
    std::uint64_t end_number = 0;  // as in its JobRecord
    std::optional<TimePoint> deserted_since = {};
    std::optional<TimePoint> watched_at = {};
    auto mark() const { return std::tuple(membership.landmark(), former_instance, owner); }
  };
  struct Agent {
    std::string job;
    std::string agent_id;
  };

  void hello(const Origin& origin, const Hello& hello);
  void request(const Origin& origin, const UserRequest& request);
  std::vector<OutputInquiries::Node> nodes_of(const Membership& job,
                                              std::optional<Rank> rank) const;
  void see_nodes(const std::string& job_id);
  void hand_on(InquiryOutput&& from);
  void send(ToAgent to, std::uint64_t after);
  void notify_watchers(const std::string& job_id, const ServiceMessage& last_word,
                       std::uint64_t after);
  Result<Job*> job_for(const Hello& hello, std::optional<UserId> user);
  Result<Job*> begin_job(const Hello& hello, std::optional<UserId> user);
  void note_over(std::string instance);
  bool has_past(const Hello& hello) const;
  bool can_recall(const std::string& instance) const;
  std::optional<std::string> why_not_now(const Hello& hello) const;
  Duration ranks_every();
  bool is_known(const Hello& hello) const;
  void refuse(AgentConnectionId connection, std::string reason, bool is_of_job = false);
  void record(Job& job);
  void forward(const std::string& job_id, MembershipOutput&& from);
  void forget_old_verdicts();
  // Forgets jobs that have had no agents for longer than a lease, so that untrusted clients
  // cannot fill the table. Agents may begin them anew.
  void forget_deserted_jobs();

  void notice_time();

  ServiceOptions options_;
  TimePoint now_;                   // of the event that is being handled
  ServiceOutput out_;               // what it has led to so far; empty between events
  std::optional<TimePoint> awake_;  // time of the last call, once pulse() was called
  std::map<std::string, Job> jobs_;
  std::optional<TimePoint> watched_at_;  // when a person has looked at all jobs
  Duration ranks_every_{};               // as of counted_ranks_at_
  std::optional<TimePoint> counted_ranks_at_;
  std::uint64_t jobs_begun_ = 0;
  std::uint64_t changes_ = 0;
  std::uint64_t jobs_ended_ = 0;
  std::uint64_t durable_ = std::numeric_limits<std::uint64_t>::max();
  std::optional<std::string> closed_;  // why nothing new is admitted
  std::map<AgentConnectionId, Agent> agents_;
  std::map<std::string, AgentConnectionId> connections_;  // by agent id
  // Connections that have asked for the stop of a job and wait for its end; by job id.
  std::map<AgentConnectionId, std::string> watchers_;
  OutputInquiries inquiries_;
  std::vector<std::string> ended_;  // oldest first
  std::set<std::string> recalled_;  // recalled instances of earlier runs of the service
  std::deque<std::string> over_;    // instances of the newest ended and forgotten jobs
  JobCounts counts_;
};

}  // namespace ddprun
