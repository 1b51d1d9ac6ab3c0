// PendingConnections: the connections of a service that have not sent a message of an agent yet. It
// finds out what their clients are, and hands them on. server.h says how they are kept cheap.
//
// One thread, that of the io_context, makes all calls and gets all callbacks.
#pragma once

#include <boost/asio/io_context.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/clock.h"
#include "rendezvous/auth/async_munge.h"
#include "rendezvous/auth/core/keyring.h"
#include "rendezvous/auth/tls_context.h"
#include "rendezvous/http/core/counters.h"
#include "rendezvous/net/limited_log.h"
#include "rendezvous/protocol/core/control_message.h"
#include "rendezvous/service/session.h"

namespace ddprun {

class StoreServer;

struct PendingConnectionsEvents {
  // A client has proved what it must, and has sent this. `session` may have more frames, and no
  // read is pending.
  std::function<void(const SessionPtr& session, const AgentMessage& message)> agent;
  std::function<void(const TransportPtr& wire, const std::string& first_bytes)> http;
  // Returns whether this service runs for the job of the Hello alone.
  std::function<bool(const Hello&)> is_own;
  std::function<void()> sent;  // has_sent_all() may be true now
};

class PendingConnections {
 public:
  // hello_timeout: for everything up to the first message. turns: of HandshakeQueue. Call close()
  // before the end of io, log and counters.
  static std::shared_ptr<PendingConnections> make(boost::asio::io_context& io, LimitedLog& log,
                                                  ServiceCounters& counters, Duration hello_timeout,
                                                  std::size_t turns,
                                                  PendingConnectionsEvents events);
  virtual ~PendingConnections() = default;

  // Takes an accepted connection.
  virtual void welcome(boost::asio::ip::tcp::socket socket, const SocketAddress& peer,
                       AgentConnectionId id) = 0;
  // Reads and ignores what they say from now on.
  virtual void drain() = 0;
  // Closes all. No callback is called after it.
  virtual void close() = 0;
  virtual std::size_t size() const = 0;
  virtual bool has_sent_all() const = 0;

  // What new connections have to prove. See RendezvousServer.
  Keyring keys;
  std::optional<AsyncMunge> munge;
  TlsContextPtr tls;
  StoreServer* store = nullptr;  // on the same port; null: its clients are closed
};

}  // namespace ddprun
