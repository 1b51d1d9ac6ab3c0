// TcpAcceptor: takes the clients of a listening socket, for every server of ddprun.
//
// Asio's own accept does not set close-on-exec, and workers are started by the process that
// serves; so clients are taken with accept4. Several are taken from the backlog at a time, then
// other handlers get their turn. Without descriptors or memory nobody can be taken until somebody
// leaves: the acceptor says so and tries again after a pause.
//
// Made, used and destroyed on the thread that runs the io_context; the callbacks come from there,
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
  // listener: a socket that listens already (rendezvous/net/listen.h). Nobody is taken before open().
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

// The protocol of a socket, as Asio wants to hear it when it takes the socket over.
boost::asio::ip::tcp tcp_protocol_of(int socket);

}  // namespace ddprun
