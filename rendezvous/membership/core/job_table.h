// JobTable: the rendezvous service without its sockets. Many jobs, each a Membership; connections
// in, messages out.
//
// Owner: RendezvousServer (rendezvous/service/server.h), on its one thread. Pure: connections are numbers,
// time is an argument.
//
// A connection's first message must be a Hello of this protocol version. It is answered by a
// Welcome and a Directive, or by a Refused and the end of the connection. A second connection of
// the same agent replaces the first. A job that has ended keeps its verdict for agents of it that
// come back late (kEndedJobsKept of them at most); an agent that was never in it begins a new job
// of the same id. The two are told apart by the instance, which a Welcome gives out and later
// Hellos repeat. An instance that this service did not give out is of its earlier life, before it
// was restarted: that job is recalled (rendezvous/membership/core/membership.h).
//
// Where munge says who agents are, a job is the user's who was the first to come: nobody else's
// agents are admitted to it, or told how it ended, but root's. Its id is free again when it has
// ended.
//
// A UserRequest may come on a connection of an agent, or be the first message of one that says no
// Hello (rendezvous/protocol/core/user_request.h). That one is closed after its Answer, but for a stop that
// was accepted: its End comes when the job has ended (kWatchersKept at most wait so), and for the
// output of workers (rendezvous/membership/core/output_inquiries.h), which is asked for once on a connection.
//
// What outlives the service comes out as changes, numbered from 1; what is sent names the one that
// must be safe on the disk before it leaves. A service without a disk sends at once.
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
  static constexpr int kBeatTimes = 20;  // of an interval, at which heartbeats come

  LeaseTimes times;
  Duration hello_timeout = std::chrono::seconds(10);  // of a connection that says nothing
  std::size_t handshake_turns = HandshakeTurns::kTurns;  // TLS handshakes of an address at once
  bool embedded = false;
  std::string host;  // what agents call this service's host
  // Whose all jobs here are, whoever comes first: of a service that one user runs for himself.
  std::optional<UserId> owner;
  std::string service_id;  // random; begins every instance
  // Until then agents may come that an earlier life of this service has welcomed, and this one has
  // never heard of: no job is begun without them. nullopt: there are none.
  std::optional<TimePoint> strangers_until;
};

// When an agent that was heard now is to be heard again: after the interval, and at one of kBeatTimes
// moments of it that are the same for all, so that a service with many agents wakes for many of them
// at once. That is most of what their heartbeats cost it.
Duration next_beat_in(Duration interval, TimePoint now);

struct ServiceOutput {
  struct Send {
    AgentConnectionId connection;
    ServiceMessage message;
    std::uint64_t after = 0;  // the number of the change that it tells of; 0: none
    bool last = false;        // the connection is closed when it has left
  };
  struct Change {
    std::uint64_t number;
    StateChange what;
  };
  // An Answer to be sent, whose page tells of this job, or of all where it is empty.
  struct Page {
    AgentConnectionId connection;
    std::uint64_t number = 0;
    std::string job;
    bool last = false;  // as of a Send
  };
  std::vector<Change> changes;
  std::vector<Send> sends;
  std::vector<Page> pages;
  std::vector<AgentConnectionId> closes;  // after what was sent to them has left
  std::vector<std::string> log;
  // Lines, too, but whoever reaches the service can have as many of them as he likes.
  std::vector<std::string> provoked;
};

// Since the table was made, of all its jobs, also of those that are forgotten.
struct JobCounts {
  std::uint64_t generations_formed = 0;
  std::uint64_t restarts = 0;
  std::uint64_t lease_losses = 0;
  std::uint64_t refusals = 0;  // of agents
  std::uint64_t jobs_succeeded = 0;
  std::uint64_t jobs_failed = 0;   // because of what their workers or nodes did
  std::uint64_t jobs_stopped = 0;  // because a person, or a signal to a node, has ended them
  std::map<std::string, std::uint64_t> failures;  // of generations, by kind_word()
};

class JobTable {
 public:
  static constexpr std::size_t kEndedJobsKept = 1000;
  static constexpr std::size_t kRecallsKept = 10'000;
  static constexpr std::size_t kOverKept = 1000;
  static constexpr std::size_t kWatchersKept = 1000;

  explicit JobTable(ServiceOptions options);
  // Goes on where an earlier life of the service has ended.
  JobTable(ServiceOptions options, const ServiceState& past, TimePoint now);

  // Where a message comes from.
  struct Origin {
    AgentConnectionId connection;
    bool local = false;               // the agent lives in this process
    std::string service_address;      // numeric; our end of the connection, empty for a local agent
    std::string peer_address;         // numeric; the other end
    std::optional<UserId> user = {};  // that was proved; nullopt: something else was, or nothing
  };
  // A message came. It is answered or refused; nothing that a codec lets through does harm beyond
  // its own job.
  ServiceOutput receive(const Origin& origin, const AgentMessage& message, TimePoint now);
  // The connection is gone. No effect on one that never said hello or was replaced.
  ServiceOutput disconnected(AgentConnectionId connection, TimePoint now);
  // Whether this connection reads what workers write; then all_sent() is to be called whenever
  // everything that was said on it has left.
  bool is_reader(AgentConnectionId connection) const { return inquiries_.is_reader(connection); }
  ServiceOutput all_sent(AgentConnectionId connection, TimePoint now);
  // Time has passed: to be called at deadline(), harmless at other times.
  ServiceOutput tick(TimePoint now);
  // The service's process runs. A service that calls it calls it at least every pulse_period() from
  // then on. When nothing was called for longer, the process did not run, and no node is lost for that.
  ServiceOutput pulse(TimePoint now);
  Duration pulse_period() const {
    return std::min<Duration>(std::chrono::seconds(1), options_.times.lease / 5);
  }
  // When tick() has something to do; nullopt: not before another event.
  std::optional<TimePoint> deadline() const;

  // Admits no job and no agent that is not in one already, and says why to those who ask: they try
  // again. Does the opposite without a reason.
  void close_admission(std::optional<std::string> why) { closed_ = std::move(why); }
  const std::optional<std::string>& why_closed() const { return closed_; }
  // All changes up to this number are safe on the disk: 0 at first. A job that has ended is not
  // replaced before its end is. A service without a disk never calls it.
  void note_safe(std::uint64_t number) { durable_ = number; }
  // Forgets the jobs that were begun after that change: the disk has refused them, and nobody was
  // told of them. Their agents try again. The verdicts of jobs that they have replaced are not
  // brought back: an agent that was cut off when such a verdict was told begins a job anew.
  ServiceOutput take_back(std::uint64_t after, const std::string& why);
  // What tells every agent, and who reads output, that nothing will be heard of this service for a
  // while.
  ServiceOutput farewell(const std::string& why) const;

  // No job has a connected agent: an embedded service may end.
  bool is_idle() const { return agents_.empty(); }
  // An agent was welcomed on this connection.
  bool has_agent(AgentConnectionId connection) const { return agents_.contains(connection); }
  // The job of that id, also one that has ended; null: not known. Valid until the next call.
  const Membership* find(const std::string& job) const;
  // All jobs that are known: first those that go on, by id, then those that have ended, the last
  // one first, also across lives of the service. Valid until the next call of another function.
  std::vector<const Membership*> jobs() const;
  const JobCounts& counts() const { return counts_; }
  const ServiceOptions& options() const { return options_; }

 private:
  struct Job {
    std::string instance;
    std::string former_instance;  // in the service's earlier life, where that became known later
    Membership membership;
    std::optional<UserId> owner = {};
    std::optional<std::tuple<Membership::Landmark, std::string, std::optional<UserId>>> recorded =
        {};                          // at the last change
    std::uint64_t first_change = 0;  // 0: of an earlier life
    std::uint64_t last_change = 0;
    std::uint64_t end_number = 0;  // as in its JobRecord
    std::optional<TimePoint> deserted_since = {};
    auto mark() const { return std::tuple(membership.landmark(), former_instance, owner); }
  };
  struct Agent {
    std::string job;
    std::string agent_id;
  };

  void hello(const Origin& origin, const Hello& hello, TimePoint now, ServiceOutput& out);
  void request(const Origin& origin, const UserRequest& request, TimePoint now, ServiceOutput& out);
  void inquire(AgentConnectionId reader, const UserRequest& request, TimePoint now,
               ServiceOutput& out);
  std::vector<OutputInquiries::Node> nodes_of(const Membership& job,
                                              std::optional<Rank> rank) const;
  void see_nodes(const std::string& job_id, TimePoint now, ServiceOutput& out);
  void hand_on(InquiryOutput&& from, ServiceOutput& out);
  void tell_watchers(const std::string& job_id, const ServiceMessage& last_word,
                     std::uint64_t after, ServiceOutput& out);
  Result<Job*> job_for(const Hello& hello, std::optional<UserId> user, TimePoint now);
  Result<Job*> begin_job(const Hello& hello, std::optional<UserId> user, TimePoint now);
  void note_over(std::string instance);
  bool has_past(const Hello& hello) const;
  bool can_recall(const std::string& instance) const;
  std::optional<std::string> why_not_now(const Hello& hello) const;
  bool is_known(const Hello& hello) const;
  void refuse(AgentConnectionId connection, std::string reason, ServiceOutput& out);
  void record(Job& job, TimePoint now, ServiceOutput& out);
  void forward(const std::string& job_id, MembershipOutput&& from, TimePoint now,
               ServiceOutput& out);
  void forget_old_verdicts(ServiceOutput& out);
  // Whoever has left one for longer than a lease may begin it anew; strangers cannot fill the table.
  void forget_deserted_jobs(TimePoint now, ServiceOutput& out);

  void notice_time(TimePoint now, ServiceOutput& out);
  void count_end(const Verdict& verdict);

  ServiceOptions options_;
  std::optional<TimePoint> awake_;  // the last call, once pulse() was called
  std::map<std::string, Job> jobs_;
  std::uint64_t jobs_begun_ = 0;
  std::uint64_t changes_ = 0;
  std::uint64_t jobs_ended_ = 0;
  std::uint64_t durable_ = std::numeric_limits<std::uint64_t>::max();
  std::optional<std::string> closed_;  // why nothing new is admitted
  std::map<AgentConnectionId, Agent> agents_;
  std::map<std::string, AgentConnectionId> connections_;  // by agent id
  // Who has asked for the end of a job on a connection of its own, and waits for it.
  std::map<AgentConnectionId, std::string> watchers_;
  OutputInquiries inquiries_;
  std::vector<std::string> ended_;  // oldest first
  std::set<std::string> recalled_;  // instances of the earlier life that were taken on
  std::deque<std::string> over_;  // instances of jobs that have ended and are forgotten, the newest
  JobCounts counts_;
};

}  // namespace ddprun
