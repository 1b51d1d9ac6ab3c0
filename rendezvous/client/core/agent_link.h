// AgentLink: the agent's side of its connection to the rendezvous service, without the socket.
// It decides when to connect, when to send a heartbeat and when to give the service up.
//
// Owner: ServiceLink (rendezvous/client/service_link.h), on its one thread. Pure: the link
// reports what happened and performs the returned actions in order.
//
// States
//   kPausing      not connected; the next try is at retry_at_
//   kLookingUp    the service's address is being looked up; a name server may take longer than
//                 connect_timeout, so only patience and join timeout bound this state
//   kConnecting   a connection is being made
//   kGreeting     connected; Hello sent, Welcome awaited
//   kUp           Welcome received; heartbeats go both ways
//   kOver         given up, refused, or left; nothing happens any more
//
// The lease, as the agent sees it: confirmed_ is the sending time of the latest message that
// the service has answered. When it is older than the agent's patience, the service may soon
// count this node as lost and continue without it. Therefore the agent gets ServiceLost and
// kills its workers.
//
// An agent cannot distinguish a dead service from a cut cable or from a host that was stopped
// for a while. Therefore it keeps trying to reconnect until the service has been silent for
// the join timeout. A service inside an agent dies with that agent. It is given up earlier,
// when its host has refused connections for kRefusedFor: the host runs, and the agent does
// not.
//
// Several services with a common state in etcd take turns in leading (ServiceTerm).
//   - The agent asks all services at once and follows the first one that welcomes it. A service
//     that does not lead answers Silence, which names the leader if it is known.
//   - The Welcome of a new leader has a higher term. From then on the agent refuses messages of
//     older terms, because a former leader may not know yet that another one leads.
//   - If the leader does not answer a heartbeat for a quarter of the patience, the agent leaves it
//     and asks all services again.
//
// Invariants: ServiceLost with for_good = false is returned at most once between two Welcomes.
// In kUp a heartbeat is on its way or is due at a known time. Every state but kOver has a
// deadline.
#pragma once

#include <deque>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/exit_codes.h"
#include "rendezvous/net/core/backoff.h"
#include "rendezvous/protocol/core/control_message.h"

namespace ddprun {

struct LinkLookUp {};  // look up the service's address; then call looked_up() or disconnected()
// Connect to the service. If the agent was given several services, all are asked at once. The first
// connection counts as connected(), the end of the last one as disconnected().
struct LinkConnect {
  std::size_t place = 0;  // 0: AgentLinkOptions::service; n: next_services[n - 1]
};
struct LinkClose {};
struct LinkHello {};  // send a Hello with the agent's current status
struct LinkTransmit {
  AgentMessage message;
  bool with_ranks = false;  // add the present RankReport to this Heartbeat
};
struct LinkDeliver {
  ServiceMessage message;  // for the agent: a directive, or one of the last four
};
// Returned with AgentLinkOptions::must_answer before the service has spoken. Every connection
// to the port of this host has been refused for `so_far`, so the port may be free.
struct LinkPortRefuses {
  Duration so_far;
};
struct ServiceLost {
  std::string reason;
  bool for_good = false;
  ExitCode code = ExitCode::kServiceLost;  // ddprun's exit code, if for_good
};
struct ServiceRefused {
  std::string reason;
};
using LinkAction = std::variant<LinkLookUp, LinkConnect, LinkClose, LinkHello, LinkTransmit,
                                LinkDeliver, LinkPortRefuses, ServiceLost, ServiceRefused>;
using LinkActions = std::vector<LinkAction>;

// How a try to connect failed or a connection ended.
enum class LinkFailure {
  kRefused,  // the host refused the connection at each of its addresses: no listener on the port
  kPutOff,   // the service is overloaded and said so: try later
  kOther,
};

struct AgentLinkOptions {
  std::string service;  // "node0:29400", for messages
  // Where the job's service is if another program has that port: the next ports of the host. Empty:
  // it is nowhere else. The link tries the places in turn until the first Welcome.
  std::vector<std::string> next_services;
  Duration join_timeout = kDefaultJoinTimeout;
  // The timeout of one try, and of the Welcome after it. While a lease is held, a try gets at
  // most an eighth of the patience.
  Duration connect_timeout = std::chrono::seconds(3);
  // True if the service's port is in use on this host. If its holder does not answer like a
  // rendezvous service, another program has the port, and waiting is useless.
  bool must_answer = false;
  BackoffOptions backoff = {.first = std::chrono::milliseconds(50)};
};

class AgentLink {
 public:
  // With AgentLinkOptions::must_answer the link gives up after kMaxDeafTries connections
  // without an answer. If the peer closed the last of them, they must span at least
  // kEndedEarly, because an overloaded service also closes some connections. A refused
  // connection restarts the count, because it shows that the port is free.
  static constexpr int kMaxDeafTries = 3;
  static constexpr Duration kEndedEarly = std::chrono::seconds(5);
  // An overloaded service says so (kPutOff). After this time such a reply counts as no answer,
  // because it is not authenticated.
  static constexpr Duration kPutOffFor = std::chrono::seconds(60);
  // A host that has refused every connection for this time does not run the agent with the service
  // any more. The time begins when the service was last heard.
  static constexpr Duration kRefusedFor = std::chrono::seconds(10);
  // While the link seeks the service at several places, a try has no more time than this, until
  // the peer speaks the protocol.
  static constexpr Duration kSeekTime = std::chrono::seconds(2);
  // An idle agent that has found no service for this time says why it waits. Before that it is
  // quiet, because nodes do not start at the same moment.
  static constexpr Duration kQuietTime = std::chrono::seconds(3);
  // While a person watches the job, heartbeats come at least this often, and have the ranks at
  // most about as often. The service may ask for fewer, down to one in kRanksLeast.
  static constexpr Duration kRanksEvery = std::chrono::seconds(1);
  static constexpr Duration kRanksLeast = std::chrono::seconds(5);

  AgentLink(AgentLinkOptions options, Rng rng, TimePoint now);

  // Begins the first try. Call it once, before all other functions.
  LinkActions start(TimePoint now);
  // Reports that the address which LinkLookUp asked for is known.
  LinkActions looked_up(TimePoint now);
  // Reports that the connection which LinkConnect asked for is established.
  LinkActions connected(TimePoint now);
  // Reports that the look-up or the try failed, or that the connection broke. The connection
  // is already closed.
  LinkActions disconnected(const std::string& why, TimePoint now,
                           LinkFailure failure = LinkFailure::kOther);
  // Handles a message. A Directive is delivered. A HeartbeatAck extends the lease. A Welcome
  // begins the lease. A Refused ends everything. A Silence changes only messages: idle agents say
  // why they wait, and an agent that gives up quotes the service.
  //
  // While is_seeking(), only the job's own service is believed: its Welcome has `own`, and its
  // Refused has `is_of_job`. After any other message the next place is tried.
  LinkActions received(const ServiceMessage& message, TimePoint now);
  // Reports that the peer speaks the protocol, although it has not answered the Hello yet. It gets
  // connect_timeout from now on.
  LinkActions heard(TimePoint now);
  // Reports that the service is there but that this node does not follow it. Before the first
  // Welcome this ends everything. After it, it counts as a broken connection: another process
  // may only have taken the place of a service that is gone.
  LinkActions distrusted(const std::string& why, TimePoint now);
  // Reports that the received bytes are not a message of this protocol.
  LinkActions garbled(const std::string& why, TimePoint now);
  // Reports that the connection cannot be protected by TLS: the service has no TLS, or one
  // side does not accept the other's certificate.
  LinkActions without_tls(const std::string& why, TimePoint now);
  // Handles the passing of time. Call it at deadline(); other times do no harm.
  LinkActions tick(TimePoint now);
  // Sends a status. In kUp it goes at once. In kGreeting it goes after the Welcome, because
  // the Hello on its way does not contain it. In other states it is dropped, and the next
  // Hello makes up for it. Call it for messages that no Hello makes up for only while is_up().
  LinkActions send(const AgentMessage& message);
  // Returns true if the service receives what is sent now.
  bool is_up() const { return state_ == kUp; }
  // Returns true while a heartbeat has no answer.
  bool awaits_ack() const { return !beats_.empty(); }
  // Ends the link because the agent is about to end. No more tries follow.
  LinkActions leave(const Leave& leave);

  // Returns when tick() has something to do; the time may change with every call. nullopt:
  // never again.
  std::optional<TimePoint> deadline() const;

  // Returns the highest term that was seen; 0: none.
  ServiceTerm term() const { return term_; }
  // Returns whether the message is of a service that leads no more. received() refuses such a
  // message: it leaves the service that sends such a Welcome, and ignores a directive.
  bool is_of_older_term(const ServiceMessage& message) const {
    return term_of(message).value_or(term_) < term_;
  }

  // Returns the instance of the last Welcome, which a Hello must repeat.
  const std::string& instance() const { return instance_; }
  // Returns the place that is tried or connected to (LinkConnect::place).
  std::size_t place() const { return place_; }
  // Returns whether the job's service may be at another place than the one that is tried. Then no
  // peer is trusted to end the job.
  bool is_seeking() const { return !options_.next_services.empty() && instance_.empty(); }

 private:
  enum class State { kPausing, kLookingUp, kConnecting, kGreeting, kUp, kOver };
  using enum State;
  struct Beat {
    std::uint64_t number;
    TimePoint sent;
  };

  void pause();
  enum class Try { kRefused, kPutOff, kEndedEarly, kSilent, kOther };
  void try_failed(Try how);
  bool is_another_program(Try how);
  bool is_host_without_service(Try how);
  void not_a_service(const std::string& why);
  void give_up(std::string reason, ExitCode code);
  void check_patience();
  void give_up_at_deadline();
  LinkActions begin_try();
  Duration try_time() const;
  LinkActions pass_over(const std::string& why, TimePoint now);
  const std::string& here() const;
  std::string everywhere() const;
  const std::string& trouble() const { return found_.empty() ? last_trouble_ : found_; }
  std::string service() const { return "the rendezvous service at " + here(); }
  std::string what_it_said() const;
  std::string where_it_ran() const;
  Duration beat_pause(const HeartbeatAck& ack) const;
  bool begins_ranks();
  std::optional<TimePoint> silent_at() const;

  AgentLinkOptions options_;
  TimePoint now_;    // of the event that is being handled
  LinkActions out_;  // what it has led to so far; empty between events
  Backoff backoff_;
  State state_ = kPausing;
  std::size_t place_ = 0;
  // While seeking: the last place that did not just refuse connections, and what was found there.
  std::string found_;
  bool was_heard_ = false;  // in this try
  TimePoint retry_at_;
  TimePoint try_until_;  // the deadline of the current try
  Duration try_allowed_{};
  TimePoint join_until_;  // the deadline for joining or rejoining
  TimePoint next_beat_;
  bool is_watched_ = false;              // as the last HeartbeatAck said
  Duration ranks_every_ = kRanksEvery;   // while it is true
  std::optional<TimePoint> ranks_sent_;  // with the last Heartbeat that had them
  TimePoint hello_sent_;
  std::optional<AgentMessage> unsaid_;  // the newest since that Hello
  TimePoint confirmed_;
  std::deque<Beat> beats_;  // sent and not answered, oldest first; bounded by patience / interval
  std::uint64_t next_number_ = 1;
  std::optional<Welcome> welcome_;  // the last one; set while the lease is held
  std::string embedded_on_;  // host of the agent that has the service; empty: none, or unknown
  std::optional<TimePoint> refused_since_;  // every try since then was refused
  int deaf_tries_ = 0;                      // connections without an answer
  std::optional<TimePoint> deaf_since_;     // time of the first of them
  std::optional<TimePoint> put_off_since_;
  bool has_spoken_ = false;     // the peer is a rendezvous service, even if silent now
  std::string silence_reason_;  // of the last Silence since the last Welcome
  bool said_so_ = false;        // in this try
  std::string instance_;
  ServiceTerm term_ = 0;
  bool has_warned_ = false;  // the message that no service answers was given
  std::string last_trouble_ = "no try was made";
};

}  // namespace ddprun
