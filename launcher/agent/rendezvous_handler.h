// RendezvousHandler: how this node comes to its job's rendezvous service, and the service itself where the
// node embeds it.
//
// It decides which of the two it is from what --rdzv-endpoint or --master-addr lead to, and owns
// the listener, the server and the link. What is said on the link is the agent's.
//
// Where the port of this host is taken, the node connects to it. If the port is given back before a
// service has spoken there, the node listens itself.
//
// Owner: Agent, on its one thread; only meet() blocks: while names are looked up.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/exit_codes.h"
#include "base/host_port.h"
#include "base/log.h"
#include "base/result.h"
#include "rendezvous/client/service_link.h"
#include "rendezvous/net/listen.h"
#include "rendezvous/protocol/core/control_message.h"
#include "rendezvous/service/server.h"

namespace ddprun {

struct AgentConfig;

class RendezvousHandler {
 public:
  // REQUIRES: io, log and config outlive it.
  RendezvousHandler(boost::asio::io_context& io, Logger& log, const AgentConfig& config);

  // Finds the service, or listens to be it; nothing is sent or accepted yet. The error names the
  // option. Call once.
  Result<void> meet(ServiceLinkEvents events);
  // What ddprun ends with where meet() has failed.
  ExitCode exit_code() const { return exit_code_; }

  // From here on the service hears of this node. REQUIRES: meet() has gone well.
  void start();

  // What a Hello says of job and node; what the node does is the caller's to fill in.
  // local_address: as ServiceLinkEvents has it.
  Hello introduce(const std::string& local_address) const;

  // REQUIRES: meet() has gone well.
  ServiceLink& link() { return *link_; }
  // The embedded service; null: it is elsewhere, or close() was called.
  RendezvousServer* server() { return server_.get(); }
  // The one port of torchrun's static mode, which its store shares; nullopt: there is none here.
  std::optional<std::uint16_t> shared_port() const { return shared_port_; }

  // Goodbye, not from within the link's own call: `then` is called when it has been sent, and when
  // the others have heard the verdict from an embedded service, or do not come for it.
  void leave(std::optional<Leave> word, std::function<void()> then);

  // Closes link and service at once. Nothing is called any more.
  void close();

 private:
  Result<void> meet_dynamic();
  Result<void> meet_static();
  Result<void> embed(std::optional<Listener> listener, std::string address);
  void connect(std::optional<HostPort> own_port, const std::string& address);
  void listen_again(const HostPort& port, const std::string& address, Duration refused_for);
  void drain(const std::function<void()>& then);

  boost::asio::io_context& io_;
  Logger& log_;
  const AgentConfig& config_;
  const std::string agent_id_;
  ServiceLinkEvents events_;
  boost::asio::steady_timer drained_;
  std::unique_ptr<RendezvousServer> server_;
  std::unique_ptr<ServiceLink> link_;
  std::string own_address_;  // towards an embedded service
  std::string local_addr_;   // --local-addr, numeric; empty: not given
  std::optional<std::uint16_t> shared_port_;
  bool may_listen_ = false;  // the service on this host has not spoken, and nobody leaves
  ExitCode exit_code_ = ExitCode::kAddress;
};

}  // namespace ddprun
