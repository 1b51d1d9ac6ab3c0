// EtcdState: a service's state in etcd, for several services of which one leads. It performs what
// Leadership and FencedWrites decide.
//
// It takes the place of StateDirectory and StateWriter: changes go in, and come back as durable.
// Only the leader has changes. A process that was stopped must ask serves() before it answers
// anyone.
//
// The io_context's thread makes all calls and gets all callbacks, never within a call. After the
// destructor no callback is called.
#pragma once

#include <boost/asio/io_context.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/rng.h"
#include "rendezvous/persistence/etcd_client.h"
#include "rendezvous/persistence/state_store.h"

namespace ddprun {

struct EtcdStateOptions {
  EtcdClientOptions client;
  std::string prefix;   // of this cluster of services, without a slash at its end
  std::string address;  // of this service, for its standbys and their agents
  // etcd removes the state if no leader has lived for this time; zero: never.
  Duration keys_live{};
};

struct EtcdStateEvents {
  // failed: a change is larger than etcd takes, or a write has failed for kStuckAfter.
  StateStoreEvents store;
  // This service leads in this term. The image is what earlier leaders have written.
  std::function<void(EtcdRevision term, const JournalImage& image)> leads;
  std::function<void()> suspended;  // answer no agent, but keep connections and state
  std::function<void()> resumed;
  // Another service leads, or will. What is not durable is lost.
  std::function<void(const std::string& why)> stepped_down;
  // Another service leads in this term. leader: its address.
  std::function<void(const std::string& leader, EtcdRevision term)> follows;
  // etcd does not answer, or refuses. nullopt: it answers again.
  std::function<void(const std::optional<Error>& why)> trouble;
};

class EtcdState final : public StateStore {
 public:
  static constexpr Duration kStuckAfter = std::chrono::seconds(1);

  EtcdState(boost::asio::io_context& io, EtcdStateOptions options, Rng rng, EtcdStateEvents events);
  ~EtcdState() override;

  // Writes a change of this term, whose numbers begin with 1. Does nothing after resign().
  // REQUIRES: this service leads.
  void keep(std::uint64_t number, const StateChange& change) override;
  // Returns whether agents may be answered now.
  bool serves() const;
  // Reports that the leader's host refuses connections, after the connection to it was broken.
  void leader_process_gone();
  // Lets a standby lead at once. then: the lease is revoked, or a short time is over.
  void resign(std::function<void()> then);
  // Makes new connections to etcd use this context.
  void set_tls(TlsContextPtr tls);

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace ddprun
