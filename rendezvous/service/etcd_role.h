// EtcdRole: whether a service that keeps its state in etcd leads or stands by. It is the service's
// StateStore, and says what a standby answers.
//
//   leads       the service has the state and decides. It answers agents while serves() is true
//   stands by   another service leads, or none. Agents are sent to the leader, if it is known
//   looks on    as standing by, but it does not try to lead. It reads the leader key when an agent
//               asks. If no service leads, it stands by
//
// One thread, which runs the io_context, makes all calls and gets all callbacks, never within a
// call. After the destructor no callback is called.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <optional>
#include <string>

#include "base/log.h"
#include "rendezvous/http/core/counters.h"
#include "rendezvous/membership/core/job_table.h"
#include "rendezvous/net/limited_log.h"
#include "rendezvous/persistence/etcd_state.h"
#include "rendezvous/protocol/core/control_message.h"
#include "rendezvous/service/leader_watch.h"

namespace ddprun {

struct EtcdRoleEvents {
  StateStoreEvents store;
  std::function<void(const ServiceState& past)> leads;  // continue with this state
  std::function<void()> resumed;                        // serves() is true again
  // Forget the state, and send all agents away: another service leads, or will.
  std::function<void(const std::string& why)> stepped_down;
  // Agents that wait can be answered: leader() is another service, or this service of one agent
  // has found trouble with etcd.
  std::function<void()> has_answer;
};

// Returns the options of a leader that continues with this state. before: with the calendar of now.
ServiceOptions options_of_term(ServiceOptions before, const ServiceState& past);

class EtcdRole final : public StateStore {
 public:
  // looks_on: given if many services are there, of which a few should stand for leader. A service
  // that finds no leader looks again after a random part of this time, before it stands.
  EtcdRole(boost::asio::io_context& io, Logger& log, EtcdStateOptions options,
           EtcdRoleEvents events, std::optional<Duration> looks_on = std::nullopt);

  // REQUIRES: leads().
  void keep(std::uint64_t number, const StateChange& change) override {
    state_->keep(number, change);
  }

  bool leads() const { return term_ != 0; }
  // Returns whether agents may be answered now. Ask it before each answer, because a process that
  // was stopped learns nothing else in time.
  bool serves() const { return leads() && state_->serves(); }
  // Returns the term while this service leads; 0: it does not.
  EtcdRevision term() const { return term_; }
  // Returns the address of the other service that leads; empty: not known.
  const std::string& leader() const { return leader_; }
  // Stands for leader from now on.
  void stand();
  // Looks for the leader, because an agent asks here.
  void look();
  // Returns whether an agent that was served in this term (0: in none) has to wait for an election.
  // No service is known to lead, or the agent has just lost the one that is. The agent whose
  // process this is must know at once of trouble with etcd, to tell its user.
  bool has_to_wait(ServiceTerm served) const {
    if (leads() || unable_ || (is_private_ && trouble_)) return false;
    return leader_.empty() || served >= followed_;
  }
  // Returns what an agent is told while this service stands by.
  Silence standby_answer() const;
  // Returns why this service neither serves nor is a good standby; nullopt: it is one of them.
  std::optional<std::string> why_not_ready() const;
  EtcdCounters counters() const;

  // Lets another service lead at once. `then` is called when that is done, or after a short time.
  void resign(std::function<void()> then);
  // Makes new connections to etcd use this context.
  void set_tls(TlsContextPtr tls);

 private:
  EtcdStateEvents events_of_state();
  void looked(const Result<LeaderKey>& key);
  std::optional<HostPort> parse_leader(const std::string& leader);
  void announce(const std::string& text);
  void note_trouble(const std::optional<Error>& why);
  void take_over(EtcdRevision term, const JournalImage& image);
  void follow(const std::string& leader, EtcdRevision term);

  boost::asio::io_context& io_;
  Logger& log_;
  LimitedLog trouble_log_{log_, 5, std::chrono::minutes(1)};
  std::string address_;
  EtcdRoleEvents events_;
  EtcdRevision term_ = 0;
  EtcdRevision first_term_ = 0;  // the first one that this process has seen
  std::string leader_;
  EtcdRevision followed_ = 0;           // the term of leader_
  std::optional<LeaderWatch> watch_;    // of leader_
  std::optional<std::string> trouble_;  // with etcd, now
  std::optional<std::string> unable_;   // why this service can never lead
  EtcdCounters counters_;
  NameService names_;  // of etcd's members
  EtcdStateOptions options_;
  Rng rng_;
  EtcdClient looker_;
  const bool is_private_;             // of one agent
  std::optional<Duration> looks_on_;  // nullopt: it does not
  boost::asio::steady_timer again_;
  bool is_over_ = false;  // resigned
  bool is_looking_ = false;
  bool found_nobody_ = false;  // at the last look
  std::optional<EtcdState> state_;
};

}  // namespace ddprun
