// ServiceLink: an agent's way to its rendezvous service, in another process or in its own.
//
// Made by the agent and called from the thread of its io_context only, like the callbacks it is
// given.
#pragma once

#include <boost/asio/io_context.hpp>
#include <functional>
#include <memory>
#include <string>

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
  // What a Hello says now. local_address: our numeric end of the connection; empty inside one
  // process.
  std::function<Hello(const std::string& local_address)> hello;
  std::function<void(const Directive&)> directive;
  std::function<void(const Answer&)> answer;  // to ask()
  std::function<void(const ForwardSignal&)> forward_signal;
  std::function<void(const TellOutput&)> tell_output;
  std::function<void(const ServiceLost&)> lost;
  std::function<void(const ServiceRefused&)> refused;
};

class ServiceLink {
 public:
  virtual ~ServiceLink() = default;
  virtual void start() = 0;
  // What the service is to know; lost if it cannot be reached now, made up for by the next Hello.
  virtual void send(const AgentMessage& message) = 0;
  // What a user asks for. False: the service cannot be reached now, and nothing was sent. Else an
  // Answer may come, unless the connection breaks or the service is of an older version.
  virtual bool ask(const UserRequest& request) = 0;
  // To a TellOutput, on the same connection; lost with it.
  virtual void tell(const OutputPage& page) = 0;
  // Returns the instance of the job (Welcome::instance); empty before the first Welcome.
  virtual std::string instance() const = 0;
  // Goodbye; `then` is called when it has been sent, or cannot be.
  virtual void leave(std::optional<Leave> leave, std::function<void()> then) = 0;
};

// To a service in this process. The server outlives the link.
std::unique_ptr<ServiceLink> make_local_link(RendezvousServer& server, ServiceLinkEvents events);

// To a service on TCP; comes back by itself after an outage (rendezvous/client/core/agent_link.h). Its host
// is looked up on another thread, again when it cannot be reached; nothing waits for a name server
// that an address is known to do without.
struct RemoteLinkOptions {
  HostPort address;
  AgentLinkOptions link;
  // The job's key, which the service must have, too; empty: munge, if it is there.
  Secret key;
  std::shared_ptr<const Munge> munge;  // null: without a key neither side proves anything
  bool demands_proof = false;          // of a service without a key, too
  // Of an agent; null: without TLS. The files that it was made of are read again for each connection
  // after the first, because they may have been renewed since; a mistake in them changes nothing.
  TlsContextPtr tls;
  TlsFiles tls_files;
  // Called for each LinkPortRefuses, not within a call of the link. It may destroy the link.
  std::function<void(Duration so_far)> port_refuses;
  // Tests put a name service of their own here.
  std::function<void(const HostPort&, ResolveHandler)> look_up = resolve_in_background;
};
std::unique_ptr<ServiceLink> make_remote_link(boost::asio::io_context& io,
                                              RemoteLinkOptions options, ServiceLinkEvents events);

}  // namespace ddprun
