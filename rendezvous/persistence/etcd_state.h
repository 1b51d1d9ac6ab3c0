// EtcdState: a service's state in etcd, for several services of which one leads. It performs what
// Leadership and FencedWrites decide.
//
// It takes the place of StateDirectory and StateWriter: changes go in, and come back as durable.
// Only the leader has changes. A process that was stopped must ask serves() before it handles
// anything.
//
// The io_context's thread makes all calls and gets all callbacks, never within a call. After the
// destructor no callback is called.
#pragma once

#include <boost/asio/io_context.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/rng.h"
#include "rendezvous/membership/core/job_state.h"
#include "rendezvous/persistence/etcd_client.h"

namespace ddprun {

struct EtcdStateOptions {
  EtcdClientOptions client;
  std::string prefix;   // of this cluster of services, without a slash at its end
  std::string address;  // of this service, for its standbys and their agents
};

struct EtcdStateEvents {
  // This service leads in this term. The image is what earlier leaders have written.
  std::function<void(EtcdRevision term, const JournalImage& image)> leads;
  std::function<void()> suspended;  // answer no agent, but keep connections and state
  std::function<void()> resumed;
  // Another service leads, or will. What is not durable is lost.
  std::function<void(const std::string& why)> stepped_down;
  std::function<void(const std::string& leader)> follows;  // the leader's address
  // All changes up to this number are durable.
  std::function<void(std::uint64_t number)> durable;
  // etcd does not answer, or refuses. Called once until it answers again.
  std::function<void(const Error& why)> failed;
};

class EtcdState {
 public:
  EtcdState(boost::asio::io_context& io, EtcdStateOptions options, Rng rng, EtcdStateEvents events);
  ~EtcdState();

  // Queues a change of the term. Its number must be larger than the last one; 1 is the first of a
  // term. kInvalidArgument: it is larger than etcd takes. REQUIRES: this service leads.
  Result<void> keep(std::uint64_t number, const StateChange& change);
  // Returns whether agents may be answered now.
  bool serves() const;
  // Reports that the leader's host refuses connections, after the connection to it was broken.
  void leader_process_gone();
  // Lets a standby lead at once. then: the lease is revoked, or a short time is over.
  void resign(std::function<void()> then);

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace ddprun
