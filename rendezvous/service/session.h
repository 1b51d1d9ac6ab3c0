// Session: a connection that an agent may use. It cuts frames and sends messages.
//
// PendingConnections owns it until its first message, then AgentSessions. Its owner sets
// on_sent, and closes the transport at its end. One thread, that of the io_context.
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <memory>
#include <optional>
#include <string>

#include "rendezvous/membership/core/output_inquiries.h"
#include "rendezvous/net/limited_log.h"
#include "rendezvous/net/tcp_address.h"
#include "rendezvous/protocol/control_codec.h"
#include "rendezvous/transport/send_queue.h"

namespace ddprun {

struct Session : SendQueue {
  Session(boost::asio::ip::tcp::socket socket, AgentConnectionId number,
          const SocketAddress& of_peer)
      : SendQueue(std::make_shared<Transport>(std::move(socket))), id(number), peer(of_peer) {}

  // Adds the message to what flush() sends. Fails if it cannot be encoded.
  template <class Message>
  Result<void> say(const Message& message) {
    const Result<std::string> bytes = encode(message);
    if (!bytes) return bytes.error();
    add(*bytes);
    return {};
  }

  // Logs why the connection is closed.
  void warn(LimitedLog& log, const std::string& why) const {
    log.warning("closed the connection of " + to_text(peer) + ": " + why);
  }

  const AgentConnectionId id;
  const SocketAddress peer;
  const std::string peer_host = peer.host();  // numeric
  // The service's end of the connection, numeric.
  const std::string service_address = local_address_of(wire->socket().native_handle()).host();
  FrameReader frames;
  std::optional<UserId> user;    // as munge has proved
  bool close_when_sent = false;  // what the peer says is ignored
  bool is_unflushed = false;
};
using SessionPtr = std::shared_ptr<Session>;

}  // namespace ddprun
