// AgentLink: an agent's side of its connection to the rendezvous service, without the socket: when
// to connect, when to send a heartbeat, when to give the service up.
//
// Owner: ServiceLink (rendezvous/client/service_link.h), on its one thread. Pure: the link gives it what
// happened and performs the actions that come out, in order.
//
// States
//   kPausing      not connected; the next try is at retry_at
//   kLookingUp    the service's address is being looked up; a name server may take longer than a
//                 try to connect is allowed, so only patience and join timeout bound it
//   kConnecting   a connection is being made
//   kGreeting     connected, Hello sent, Welcome awaited
//   kUp           welcomed; heartbeats go both ways
//   kOver         given up, refused, or left; nothing happens any more
//
// The lease, from the agent's side: confirmed() is the sending time of the latest message that the
// service has answered. When it is older than the agent's patience, the service may soon believe
// that this node is gone and go on without it. So the agent is told Lost and kills its workers. An
// agent cannot tell a dead service from a cut cable, or from a host that was stopped for a while. So
// it goes on trying to come back until the service has been silent for the join timeout. A service
// inside an agent dies with that agent. It is given up earlier, when its host has refused connections
// for kRefusedFor: the host runs, and the agent does not.
//
// Invariants: Lost is given out at most once between two Welcomes; a heartbeat is under way in kUp,
// or due at a known time; every state but kOver has a deadline.
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

struct LinkLookUp {};  // find out the service's address: looked_up(), or disconnected()
struct LinkConnect {};
struct LinkClose {};
struct LinkHello {};  // send a Hello with the agent's present status
struct LinkTransmit {
  AgentMessage message;
};
struct LinkDeliver {
  Directive directive;
};
struct LinkHandOn {
  std::variant<Answer, ForwardSignal, TellOutput> message;
};
// With AgentLinkOptions::must_answer, before the service has spoken: every connection to the port
// of this host has been refused for `so_far`, so the port may be free.
struct LinkPortRefuses {
  Duration so_far;
};
struct ServiceLost {
  std::string reason;
  bool for_good = false;
  ExitCode code = ExitCode::kServiceLost;  // what ddprun ends with, if for good
};
struct ServiceRefused {
  std::string reason;
};
using LinkAction = std::variant<LinkLookUp, LinkConnect, LinkClose, LinkHello, LinkTransmit,
                                LinkDeliver, LinkHandOn, LinkPortRefuses, ServiceLost,
                                ServiceRefused>;
using LinkActions = std::vector<LinkAction>;

// How a try or a connection ended.
enum class LinkFailure {
  kRefused,  // the host answered that nobody listens on the port, at each of its addresses
  kPutOff,   // the service has too much to do, and says: try later
  kOther,
};

struct AgentLinkOptions {
  std::string service;  // "node0:29400", for messages
  Duration join_timeout = kDefaultJoinTimeout;
  // Of one try, and of the Welcome after it. While a lease is held a try gets an eighth of the
  // patience at most.
  Duration connect_timeout = std::chrono::seconds(3);
  // The port is taken on this host. If what holds it does not answer as a service does, another
  // program has it, and waiting is of no use.
  bool must_answer = false;
  BackoffOptions backoff = {.first = std::chrono::milliseconds(50)};
};

class AgentLink {
 public:
  // With AgentLinkOptions::must_answer the link gives up after kMaxDeafTries connections without an
  // answer. They must last for at least kEndedEarly where the other side closes them: a service
  // that is overrun closes some, too. A refusal says that the port is not taken any more.
  static constexpr int kMaxDeafTries = 3;
  static constexpr Duration kEndedEarly = std::chrono::seconds(5);
  // A service that has too much to do says so. After this time such an answer counts as none,
  // because it is not authenticated.
  static constexpr Duration kPutOffFor = std::chrono::seconds(60);
  // A host that has refused every connection for so long, since the service was last heard, does not run
  // the agent with the service any more.
  static constexpr Duration kRefusedFor = std::chrono::seconds(10);
  // Nodes do not start at the same moment. After this without a service idle agents say why they wait.
  static constexpr Duration kQuietTime = std::chrono::seconds(3);

  AgentLink(AgentLinkOptions options, Rng rng, TimePoint now);

  // The first try. To be called once, before everything else.
  LinkActions start(TimePoint now);
  // The address that LinkLookUp asked for is known.
  LinkActions looked_up(TimePoint now);
  // The connection that LinkConnect asked for is there.
  LinkActions connected(TimePoint now);
  // The look-up or the try failed, or the connection broke; it is closed already.
  LinkActions disconnected(const std::string& why, TimePoint now,
                           LinkFailure failure = LinkFailure::kOther);
  // A message came: a Directive is delivered, a HeartbeatAck prolongs the lease, a Welcome begins
  // it, a Refused ends everything. A Silence changes nothing but what is said later: idle agents say
  // why they wait, and an agent that gives up says what the service said.
  LinkActions received(const ServiceMessage& message, TimePoint now);
  // The service is there, but is not one that this node follows. Ends everything before the first
  // Welcome; after it, somebody may only have taken the place of a service that is gone.
  LinkActions distrusted(const std::string& why, TimePoint now);
  // What came is no message of this protocol.
  LinkActions garbled(const std::string& why, TimePoint now);
  // The connection cannot be protected: the service has no TLS, or one side does not accept what the
  // other has shown.
  LinkActions without_tls(const std::string& why, TimePoint now);
  // Time has passed: to be called at deadline(), harmless at other times.
  LinkActions tick(TimePoint now);
  // Sends a status: now, or after the Welcome where a Hello is on its way, which does not say it yet.
  // Else it is made up for by the next Hello. What no Hello makes up for only while is_up().
  LinkActions send(const AgentMessage& message);
  // The service hears what is sent now.
  bool is_up() const { return state_ == State::kUp; }
  // A heartbeat is on its way, or its answer is.
  bool awaits_ack() const { return !beats_.empty(); }
  // The agent is about to end: no more tries.
  LinkActions leave(const Leave& leave);

  // When tick() has something to do; it moves with every call. nullopt: never again.
  std::optional<TimePoint> deadline() const;

  // What a Hello has to repeat: the instance of the last Welcome.
  const std::string& instance() const { return instance_; }

 private:
  enum class State { kPausing, kLookingUp, kConnecting, kGreeting, kUp, kOver };
  struct Beat {
    std::uint64_t number;
    TimePoint sent;
  };

  void pause(TimePoint now);
  enum class Try { kRefused, kPutOff, kEndedEarly, kSilent, kOther };
  void try_failed(Try how, TimePoint now, LinkActions& out);
  bool is_another_program(Try how, TimePoint now);
  bool is_host_without_service(Try how, TimePoint now);
  void not_a_service(const std::string& why, LinkActions& out);
  void give_up(std::string reason, ExitCode code, LinkActions& out);
  void check_patience(TimePoint now, LinkActions& out);
  void give_up_at_deadline(TimePoint now, LinkActions& out);
  std::string what_it_said() const;
  std::string where_it_ran() const;
  Duration beat_pause(const HeartbeatAck& ack) const;

  AgentLinkOptions options_;
  Backoff backoff_;
  State state_ = State::kPausing;
  TimePoint retry_at_;
  TimePoint try_until_;  // of the present try
  Duration try_allowed_{};
  TimePoint join_until_;  // of getting (back) in
  TimePoint next_beat_;
  TimePoint hello_sent_;
  std::optional<AgentMessage> unsaid_;  // the newest since that Hello
  TimePoint confirmed_;
  std::deque<Beat> beats_;  // sent and not answered, oldest first; bounded by patience / interval
  std::uint64_t next_number_ = 1;
  std::optional<Welcome> welcome_;  // the last one; set while the lease is held
  std::string embedded_on_;         // the host of the agent that it runs in; empty: none, or not known
  std::optional<TimePoint> refused_since_;  // every try since then was refused
  int deaf_tries_ = 0;
  std::optional<TimePoint> deaf_since_;  // the first of them
  std::optional<TimePoint> put_off_since_;
  bool has_spoken_ = false;     // it is a rendezvous service, if a silent one
  std::string silence_reason_;  // of the last Silence since the last Welcome
  std::string instance_;
  bool has_told_ = false;  // that no service answers
  std::string last_trouble_ = "no try was made";
};

}  // namespace ddprun
