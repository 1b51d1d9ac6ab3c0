// RendezvousServer: the rendezvous service on TCP, and for agents in its own process.
//
// The Asio shell around JobTable: it reads frames, lets the table decide, and sends. One thread,
// the one that runs the io_context, calls everything and does everything; nothing blocks it. A
// connection that sends nonsense, or says no hello within hello_timeout, is closed with one line in
// the log.
//
// With a StateDirectory, what is sent waits until what it tells of is safe there; heartbeats, and
// what tells of nothing new, go at once. While the disk refuses to write or does not answer, nothing
// new is admitted, and a running job that has to change waits; what is to be said to an agent when
// it has changed is no more than the newest directive.
//
// With keys, an agent and the service first prove to each other that they hold the job's
// (rendezvous/protocol/core/handshake.h), and pages that show more than health want a token. Without keys,
// but with munge, agents prove what user they are instead; pages are open then. Unauthenticated
// connections are kept cheap:
//   - Each has hello_timeout for everything up to its Hello. At most kMaxPending are kept.
//   - An address has a bounded number of TLS handshakes in flight. A bounded number more wait for a
//     second at most (rendezvous/auth/core/handshake_turns.h). The others are told to try later.
//   - Wrong proofs are counted by address and job (rendezvous/auth/core/failure_rate.h). Past a bound
//     they are answered with "try later".
// Connections without TLS are not delayed by any of this. An agent that is told to try later does
// so.
//
// With TLS (rendezvous/transport/transport.h) agents and HTTP begin inside it, and without they are sent away; what
// a probe asks for is told to everybody.
//
// The same port answers HTTP (docs/monitoring.md), and in torchrun's static mode the store's
// clients, too. Callers are told apart by a connection's first bytes
// (rendezvous/net/core/first_bytes.h); one that is silent for hello_timeout is a store's client.
#pragma once

#include <boost/asio/io_context.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/log.h"
#include "base/unique_fd.h"
#include "rendezvous/auth/core/keyring.h"
#include "rendezvous/auth/tls_context.h"
#include "rendezvous/membership/core/job_table.h"
#include "rendezvous/persistence/state_directory.h"

namespace ddprun {

class Munge;
class StoreServer;

// Where a service's state is kept, and what it held.
struct KeptState {
  StateDirectory directory;
  ServiceState state;
};

class RendezvousServer {
 public:
  // Messages that wait for one slow agent; past it its connection is closed.
  static constexpr std::size_t kMaxUnsentBytes = 4 << 20;
  // Connections that have not said hello; one more, and the one is closed that has been there for
  // longest, so that nobody keeps others out by waiting.
  static constexpr std::size_t kMaxPending = 4096;
  // How long drain() waits for the disk: less than a daemon has for all of it.
  static constexpr Duration kDiskTime = std::chrono::seconds(1);

  // listener: a socket that listens already (rendezvous/net/listen.h); an invalid one for a service of
  // one process. kept: nullopt for a service that forgets. io and log outlive the server.
  RendezvousServer(boost::asio::io_context& io, Logger& log, ServiceOptions options,
                   UniqueFd listener, std::optional<KeptState> kept = std::nullopt);
  // Closes everything at once, but waits for a write to the disk that has begun, however long that
  // takes.
  ~RendezvousServer();

  // Accepts connections from now on. To be called once.
  void start();

  // Who comes from now on needs one of these keys; none: nobody needs any, as at first.
  void set_keys(Keyring keys);
  // Who comes from now on has to speak TLS with this context, of a service; null: nobody can, as at
  // first.
  void set_tls(TlsContextPtr tls);

  // Who comes from now on proves by munge what user he is, unless there are keys. Asked on a thread
  // of its own (rendezvous/auth/munge_desk.h); while munged does not answer, newcomers are put off.
  void set_munge(std::shared_ptr<const Munge> munge);

  // An agent in this process. `deliver` is called from the io_context, never from within receive().
  AgentConnectionId attach(std::function<void(const ServiceMessage&)> deliver);
  void receive(AgentConnectionId connection, const AgentMessage& message);
  void detach(AgentConnectionId connection);

  // Static mode: where the store's clients go; null: they are closed.
  void share_port_with(StoreServer* store);
  // The store of this process, for the metrics; null: there is none.
  void show_store(const StoreServer* store);

  // The service is about to end: listens no more, decides nothing more, writes what it has decided,
  // tells every agent to expect silence. Calls `then` once, from the io_context, when all of that
  // has left, or the disk has not done its part within kDiskTime.
  void drain(std::function<void()> then);

  // Calls `then` once, from the io_context, as soon as no agent is connected any more.
  void when_idle(std::function<void()> then);

  const JobTable& jobs() const;

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace ddprun
