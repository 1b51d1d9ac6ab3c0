// TcpAcceptor: accepts the clients of a listening socket, for every server of ddprun.
//
// It uses accept4, because Asio's own accept does not set close-on-exec, and the serving process
// also starts workers. It accepts several clients from the backlog at a time; then other
// handlers run. Without free descriptors or memory it cannot accept until a client leaves. It
// reports this and retries after a pause.
//
// It is made, used and destroyed on the thread that runs the io_context. Callbacks run there,
// and may destroy the acceptor.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <functional>
#include <memory>
#include <string>

#include "base/unique_fd.h"
#include "rendezvous/net/tcp_address.h"

namespace ddprun {

struct TcpAcceptorEvents {
  // socket: non-blocking, close-on-exec, TCP_NODELAY.
  std::function<void(boost::asio::ip::tcp::socket socket, const SocketAddress& peer)> client;
  std::function<void(const std::string& why)> cannot_accept;
};

class TcpAcceptor {
 public:
  // listener: a listening socket (rendezvous/net/listen.h). No client is accepted before open().
  TcpAcceptor(boost::asio::io_context& io, UniqueFd listener, TcpAcceptorEvents events);
  // Closes the listening socket at once.
  ~TcpAcceptor();
  TcpAcceptor(TcpAcceptor&&) noexcept = default;
  TcpAcceptor& operator=(TcpAcceptor&&) noexcept = default;

  void open();

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;
};

// Returns the protocol of a socket, which Asio needs to take the socket over.
boost::asio::ip::tcp tcp_protocol_of(int socket);

// Returns the address as Asio has it.
boost::asio::ip::tcp::endpoint endpoint_of(const SocketAddress& address);

}  // namespace ddprun
