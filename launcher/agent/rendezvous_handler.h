// RendezvousHandler: connects this node to its job's rendezvous service, and runs the service if
// this node embeds it.
//
// It decides between the two by the address that --rdzv-endpoint or --master-addr resolves to.
// It owns the listener, the server and the link. The agent decides what is sent on the link.
//
// If the port is on this host and already taken, the node connects to it. If the port becomes
// free before a service has answered there, the node listens itself. So it does in a pod whose name
// appears late.
//
// A port that was made from the scheduler's job may be taken by another program or job. Then node
// rank 0 listens on the first free one of Rendezvous::next_ports, and the other nodes try them all.
// That service refuses agents of other jobs.
//
// With --rdzv-backend=etcd every agent runs a service. One of them leads, and all agents follow it.
// A few others stand by. When the leader's node is lost, one of them leads with the same state.
//
// Owner: Agent, on its one thread. Only join() blocks, while it resolves names.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/exit_codes.h"
#include "base/host_port.h"
#include "base/log.h"
#include "base/result.h"
#include "rendezvous/client/service_link.h"
#include "rendezvous/net/listen.h"
#include "rendezvous/net/tcp_address.h"
#include "rendezvous/protocol/core/control_message.h"
#include "rendezvous/service/server.h"

namespace ddprun {

struct AgentConfig;

class RendezvousHandler {
 public:
  // REQUIRES: io, log and config outlive this object.
  RendezvousHandler(boost::asio::io_context& io, Logger& log, const AgentConfig& config);

  // Finds the service, or listens in order to be the service. Sends and accepts nothing yet. The
  // error names the option. Call once.
  Result<void> join(ServiceLinkEvents events);
  // Returns ddprun's exit code after join() has failed.
  ExitCode exit_code() const { return exit_code_; }

  // Begins to talk to the service. REQUIRES: join() succeeded.
  void start();

  // Returns a Hello with the facts about job and node. The caller fills in what the node is
  // doing. local_address: see ServiceLinkEvents::hello.
  Hello introduce(const std::string& local_address) const;

  // REQUIRES: join() succeeded.
  ServiceLink& link() { return *link_; }
  // Returns the embedded service; null if the service is elsewhere or close() was called.
  RendezvousServer* server() { return server_.get(); }
  // Returns whether the job has no other service than that of this process.
  bool has_only_service() const;
  // Returns the one port of torchrun's static mode, which service and store share; nullopt if
  // this node does not have it.
  std::optional<std::uint16_t> shared_port() const { return shared_port_; }

  // Returns where this node found the service, or listens.
  HostPort endpoint() const;

  // Leaves the job. May be called from within a callback of the link. Calls `then` when `word`
  // has been sent or cannot be sent. With an embedded service it also waits until the other
  // agents have left: for kDrainTimeout at most, with `word` also for the grace of their workers.
  void leave(std::optional<Leave> word, std::function<void()> then);

  // Ends the wait of leave() for other agents. No effect before that wait.
  void hurry();

  // Closes link and service at once. No callback is called any more.
  void close();

 private:
  Result<std::vector<SocketAddress>> resolve_endpoint() const;
  Result<void> join_dynamic();
  bool may_listen_first() const;
  std::string cluster_job() const;
  Result<Listener> listen_on(const std::string& host);
  Result<void> join_static();
  Result<void> join_in_etcd();
  void follow_leader();
  RemoteLinkOptions link_options() const;
  Result<void> embed(std::optional<Listener> listener, std::string address);
  void connect(std::optional<HostPort> own_port, const std::string& address);
  void listen_again(const HostPort& port, const std::string& address, Duration refused_for);
  void listen_if_here(const std::vector<SocketAddress>& addresses);
  void drain(bool is_before_end, const std::function<void()>& then);

  boost::asio::io_context& io_;
  Logger& log_;
  const AgentConfig& config_;
  const std::string agent_id_;
  ServiceLinkEvents events_;
  boost::asio::steady_timer drained_;
  std::shared_ptr<RendezvousServer> server_;
  std::shared_ptr<ServiceLink> link_;
  const bool names_may_appear_;  // a look-up that fails now may succeed later
  std::string own_address_;      // this node's, in a Hello to an embedded service
  std::string local_addr_;       // --local-addr, numeric; empty: not given
  std::optional<std::uint16_t> shared_port_;
  std::optional<std::uint16_t> own_port_;  // where this node listens
  std::function<void()> end_wait_;         // for other agents; null: there is no wait
  bool is_draining_ = false;               // that wait has ended
  bool may_listen_ = false;                // this node may still listen on the taken port
  ExitCode exit_code_ = ExitCode::kAddress;
};

}  // namespace ddprun
