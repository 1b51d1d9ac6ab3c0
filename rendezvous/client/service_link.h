// ServiceLink: an agent's connection to its rendezvous service. The service runs in another
// process or in the agent's own.
//
// The agent creates the link. The link and the callbacks that it is given run only on the
// thread of the agent's io_context.
#pragma once

#include <boost/asio/io_context.hpp>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/host_port.h"
#include "base/log.h"
#include "base/secret.h"
#include "rendezvous/auth/tls_context.h"
#include "rendezvous/client/core/agent_link.h"
#include "rendezvous/net/tcp_address.h"
#include "rendezvous/protocol/core/control_message.h"

namespace ddprun {

class Munge;
class RendezvousServer;

struct ServiceLinkEvents {
  // Returns the Hello to send now. local_address is the numeric local end of the connection.
  // It is empty for a service in the same process.
  std::function<Hello(const std::string& local_address)> hello;
  std::function<void(const Directive&)> directive;
  std::function<void(const Answer&)> answer;
  std::function<void(const ForwardSignal&)> forward_signal;
  std::function<void(const OutputDirective&)> output_directive;
  std::function<void(const StepsDirective&)> steps_directive;
  std::function<void(const ServiceLost&)> lost;
  std::function<void(const ServiceRefused&)> refused;
  // Returns what the ranks of this node do now. Called only while a person watches the job. May be
  // null.
  std::function<RankReport()> ranks = nullptr;
};

class ServiceLink {
 public:
  virtual ~ServiceLink() = default;
  virtual void start() = 0;
  // Sends a message to the service. If the service cannot be reached now, the message is lost.
  // The next Hello makes up for it.
  virtual void send(const AgentMessage& message) = 0;
  // Sends a message that no later Hello makes up for: a user's request, or the reply to a
  // OutputDirective or StepsDirective. Returns false if the service cannot be reached now; nothing
  // was sent then. A request may get no Answer, if the connection breaks or if the service has an
  // older version.
  virtual bool send_now(const AgentMessage& message) = 0;
  // Returns where the service is, or before the first Welcome the first one of the places where it
  // may be; nullopt for one in this process.
  virtual std::optional<HostPort> place() const = 0;
  // Returns the instance of the job (Welcome::instance); empty before the first Welcome.
  virtual std::string instance() const = 0;
  // Says goodbye. Calls `then` when the goodbye has been sent or cannot be sent.
  virtual void leave(std::optional<Leave> leave, std::function<void()> then) = 0;
};

// Returns a link to a service in this process. The server must outlive the link.
std::shared_ptr<ServiceLink> make_local_link(RendezvousServer& server, ServiceLinkEvents events);

// RemoteLinkOptions: how to reach a service over TCP. The link reconnects by itself after an
// outage (rendezvous/client/core/agent_link.h). Host names are looked up on another thread. A name
// is looked up again when its host cannot be reached. A known address is tried without waiting for
// a name server.
//
// Several services may have a common state in etcd. All are asked at once, and the agent follows
// the first one that welcomes it. So are all addresses of a single name, after such a service has
// answered. A standby may name the leader. That address is asked, too, if services must prove their
// identity: by a key, a certificate, or munge with demands_proof. Otherwise any program that
// answers on one of the addresses could lead agents anywhere, so only the given addresses are
// asked.
struct RemoteLinkOptions {
  HostPort address;
  std::vector<HostPort> others;  // other services with the same state
  bool is_own = false;  // this process serves at `address`, so the leader it names is asked
  std::vector<std::uint16_t> next_ports;  // of address.host, for AgentLinkOptions::next_services
  AgentLinkOptions link;
  // The job's key, which the service must also have. If it is empty, munge is used where
  // available.
  Secret key;
  std::shared_ptr<const Munge> munge;  // null: without a key neither side proves its identity
  bool demands_proof = false;          // also from a service without a key
  // The TLS context of an agent; null means no TLS. The files of the context are read again
  // for each connection after the first, because they may have been renewed. If the new files
  // have an error, the old context stays in use.
  TlsContextPtr tls;
  TlsFiles tls_files;
  // Called for each LinkPortRefuses, never from within a call of the link. It may destroy the
  // link.
  std::function<void(Duration so_far)> port_refuses;
  // Called with the result of a look-up, as long as no service has answered. It may destroy the
  // link.
  std::function<void(const std::vector<SocketAddress>&)> found;
  // Looks up an address. Tests replace it by their own name service.
  std::function<void(const HostPort&, ResolveHandler)> look_up = resolve_in_background;
};
std::shared_ptr<ServiceLink> make_remote_link(boost::asio::io_context& io,
                                              RemoteLinkOptions options, ServiceLinkEvents events);

}  // namespace ddprun
