// RendezvousServer: the rendezvous service on TCP, and for agents in its own process.
//
// The Asio shell around JobTable: it reads frames, lets the table decide, and sends. One thread,
// the one that runs the io_context, calls everything and does everything; nothing blocks it. A
// connection that sends nonsense, or says no hello within hello_timeout, is closed with one line in
// the log.
//
// The same port answers HTTP (docs/monitoring.md), and in torchrun's static mode the store's
// clients, too. Callers are told apart by a connection's first bytes
// (rendezvous/core/first_bytes.h); one that is silent is kept there, since a store's client may be.
#pragma once

#include <boost/asio/io_context.hpp>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/log.h"
#include "base/unique_fd.h"
#include "rendezvous/core/job_table.h"

namespace ddprun {

class StoreServer;

class RendezvousServer {
 public:
  // Messages that wait for one slow agent; past it its connection is closed.
  static constexpr std::size_t kMaxUnsentBytes = 4 << 20;

  // listeners: sockets that listen already (rendezvous/listen.h); none for a service of one
  // process. io and log outlive the server.
  RendezvousServer(boost::asio::io_context& io, Logger& log, ServiceOptions options,
                   std::vector<UniqueFd> listeners);
  // Closes everything at once.
  ~RendezvousServer();

  // Accepts connections from now on. To be called once.
  void start();

  // An agent in this process. `deliver` is called from the io_context, never from within receive().
  AgentConnectionId attach(std::function<void(const ServiceMessage&)> deliver);
  void receive(AgentConnectionId connection, const AgentMessage& message);
  void detach(AgentConnectionId connection);

  // Static mode: where the store's clients go; null: they are closed.
  void share_port_with(StoreServer* store);
  // The store of this process, for the metrics; null: there is none.
  void show_store(const StoreServer* store);

  // Calls `then` once, from the io_context, as soon as no agent is connected any more.
  void when_idle(std::function<void()> then);

  const JobTable& jobs() const;

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace ddprun
