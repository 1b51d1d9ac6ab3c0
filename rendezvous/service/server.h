// RendezvousServer: the rendezvous service on TCP, and for agents in its own process.
//
// It is the Asio shell around JobTable: it reads frames, lets the table decide, and sends. One
// thread, which runs the io_context, makes all calls and does all work. Nothing blocks it. A
// connection that sends invalid data, or no Hello within hello_timeout, is closed with one
// line in the log.
//
// With a StateDirectory, a message waits until the change that it reports is durable.
// Heartbeat acknowledgements, and messages that report no change, go at once. While the disk
// refuses to write or does not answer, nothing new is admitted. A running job that has to
// change waits then. For each agent only the newest directive waits.
//
// With its state in etcd, several services stand for leader. A standby answers agents with the
// leader's address. A leader that may not serve for a while holds its messages back. One that does
// not lead any more forgets its jobs and sends its agents away.
//
// With keys, an agent and the service first prove to each other that they hold the job's key
// (rendezvous/protocol/core/handshake.h). Pages that show more than health need a token then.
// Without keys but with munge, agents prove their user instead; pages are open then.
// Unauthenticated connections are kept cheap:
//   - Each has hello_timeout for everything up to its Hello. At most kMaxPending are kept.
//   - An address has a bounded number of TLS handshakes in flight. A bounded number more wait for
//     at most a second (rendezvous/auth/core/handshake_turns.h). The others are told to try later.
//   - Wrong proofs are counted by address and job (rendezvous/auth/core/failure_rate.h). Above a
//     bound they are answered with "try later".
// Connections without TLS are not delayed by any of this. An agent that is told to try later
// does so.
//
// With TLS (rendezvous/transport/transport.h), agents and HTTP clients must use it; without it
// they are refused. Only /healthz, /readyz and /leader are answered to everyone.
//
// The same port answers HTTP (docs/how-to/monitoring.md) and, in torchrun's static mode, the
// store's clients. The first bytes of a connection show the kind of client
// (rendezvous/net/core/first_bytes.h). In static mode a connection that is silent for hello_timeout
// is a store's client.
#pragma once

#include <boost/asio/io_context.hpp>
#include <functional>
#include <memory>
#include <optional>

#include "base/log.h"
#include "base/unique_fd.h"
#include "rendezvous/auth/core/keyring.h"
#include "rendezvous/auth/tls_context.h"
#include "rendezvous/membership/core/job_table.h"
#include "rendezvous/persistence/etcd_state.h"
#include "rendezvous/persistence/state_directory.h"

namespace ddprun {

class Munge;
class StoreServer;

// KeptState: where a service's state is kept, and what was read from there.
struct KeptState {
  StateDirectory directory;
  ServiceState state;
};

class RendezvousServer {
 public:
  // Limit of the unsent messages of one agent. Above it the agent's connection is closed.
  static constexpr std::size_t kMaxUnsentBytes = 4 << 20;
  // Limit of the connections without a Hello. One more closes the oldest of them, so that
  // waiting connections cannot keep others out.
  static constexpr std::size_t kMaxPending = 4096;
  // How long drain() waits for the disk. It is less than a daemon has for its whole end
  // (Daemon::kDrainTime).
  static constexpr Duration kDiskTime = std::chrono::seconds(1);

  // listener: a socket that already listens (rendezvous/net/listen.h); an invalid one for a
  // service of one process. kept: nullopt for a service without durable state. io and log must
  // outlive the server. The end of the last owner's pointer closes everything at once. It waits
  // only for a disk write that has begun, however long that takes.
  static std::shared_ptr<RendezvousServer> make(boost::asio::io_context& io, Logger& log,
                                                ServiceOptions options, UniqueFd listener,
                                                std::optional<KeptState> kept = std::nullopt);
  virtual ~RendezvousServer() = default;

  // Keeps the state in etcd, together with other services: this one serves while it leads
  // (rendezvous/service/etcd_role.h). Call it before start(), and not with `kept`. looks_on: see
  // EtcdRole; a service that looks on stands after stand_for_leader().
  virtual void keep_in_etcd(EtcdStateOptions etcd,
                            std::optional<Duration> looks_on = std::nullopt) = 0;
  virtual void stand_for_leader() = 0;

  // Begins to accept connections. Call it once.
  virtual void start() = 0;

  // Sets the keys: new connections need one of them. An empty keyring, as at first: no
  // connection needs a key.
  virtual void set_keys(Keyring keys) = 0;
  // Sets the TLS context of a service: new connections must use TLS with it. null, as at
  // first: no connection can use TLS.
  virtual void set_tls(TlsContextPtr tls) = 0;
  // Sets the TLS context of later connections to etcd.
  virtual void set_etcd_tls(TlsContextPtr tls) = 0;

  // Makes new connections prove their user by munge, unless there are keys. munge is asked on
  // a thread of its own (rendezvous/auth/async_munge.h). While munged does not answer, new
  // connections are told to try later.
  virtual void set_munge(std::shared_ptr<const Munge> munge) = 0;

  // Attaches an agent in this process. `deliver` is called from the io_context, never from
  // within receive(). `ranks` returns what its ranks do now. It is called only while a person
  // watches the job, and may be null.
  virtual AgentConnectionId attach(std::function<void(const ServiceMessage&)> deliver,
                                   std::function<RankReport()> ranks) = 0;
  virtual void receive(AgentConnectionId connection, const AgentMessage& message) = 0;
  virtual void detach(AgentConnectionId connection) = 0;

  // Sets the server that gets the store's clients; for static mode. null: they are closed.
  virtual void share_port_with(StoreServer* store) = 0;
  // Sets the store of this process for the metrics. null: there is none.
  virtual void show_store(const StoreServer* store) = 0;

  // Prepares the end of the service. It stops listening and decides nothing more. It writes
  // what it has decided and tells every agent to expect silence. Calls `then` once, from the
  // io_context, when all of that has been sent. If the disk has not finished within kDiskTime,
  // the farewell is sent without it.
  virtual void drain(std::function<void()> then) = 0;

  // Calls `then` once, from the io_context, as soon as no agent is connected.
  virtual void when_idle(std::function<void()> then) = 0;

  virtual const JobTable& jobs() const = 0;
};

}  // namespace ddprun
