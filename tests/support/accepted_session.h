// AcceptedSessions: a service's ends of connections whose clients the test plays. One owner thread.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <memory>
#include <utility>

#include "rendezvous/service/session.h"
#include "tests/support/raw_tcp_client.h"

namespace ddprun::testing_support {

// The client must outlive every wait for its bytes. The test closes session->wire at its end.
struct AcceptedSession {
  SessionPtr session;
  std::unique_ptr<RawTcpClient> client;
};

class AcceptedSessions {
 public:
  explicit AcceptedSessions(boost::asio::io_context& io)
      : acceptor_(io, {boost::asio::ip::address_v4::loopback(), 0}) {}

  // Connects a client, and accepts it as a session of this number. The kernel keeps some
  // kBufferBytes of what either sends.
  AcceptedSession connect(int id) {
    const std::uint16_t port = acceptor_.local_endpoint().port();
    auto client = std::make_unique<RawTcpClient>(port, "127.0.0.1", kBufferBytes);
    boost::asio::ip::tcp::socket socket = acceptor_.accept();
    socket.set_option(boost::asio::socket_base::send_buffer_size(kBufferBytes));
    auto session = std::make_shared<Session>(std::move(socket), AgentConnectionId(id),
                                             *numeric_address({"127.0.0.1", port}));
    return {std::move(session), std::move(client)};
  }

 private:
  static constexpr int kBufferBytes = 64 * 1024;

  boost::asio::ip::tcp::acceptor acceptor_;
};

}  // namespace ddprun::testing_support
