#include "rendezvous/net/tcp_acceptor.h"

#include <sys/socket.h>

#include <boost/asio/steady_timer.hpp>
#include <cerrno>
#include <cstring>
#include <new>

#include "rendezvous/net/blocking_socket.h"

namespace ddprun {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

namespace {

// How many clients are accepted from the backlog before other handlers run.
constexpr int kClientsPerTurn = 64;
constexpr auto kPause = std::chrono::milliseconds(100);

}  // namespace

tcp tcp_protocol_of(int socket) {
  return local_address_of(socket).family() == AF_INET6 ? tcp::v6() : tcp::v4();
}

tcp::endpoint endpoint_of(const SocketAddress& address) {
  tcp::endpoint endpoint;
  endpoint.resize(address.size);
  std::memcpy(endpoint.data(), address.get(), address.size);
  return endpoint;
}

class TcpAcceptor::Impl : public std::enable_shared_from_this<Impl> {
 public:
  Impl(asio::io_context& io, UniqueFd listener, TcpAcceptorEvents events)
      : io_(io), acceptor_(io), pause_(io), events_(std::move(events)) {
    const tcp protocol = tcp_protocol_of(listener.get());
    acceptor_.assign(protocol, listener.release());
  }

  void await_clients() {
    acceptor_.async_wait(tcp::acceptor::wait_read,
                         [weak = weak_from_this()](const error_code& error) {
                           const auto self = weak.lock();
                           if (self && self->is_open() && !error) self->take_turn();
                         });
  }

  void close() {
    error_code ignored;
    acceptor_.close(ignored);
    pause_.cancel();
  }

 private:
  bool is_open() const { return acceptor_.is_open(); }

  void take_turn() {
    try {
      take_clients();
    } catch (const std::bad_alloc&) {
      rest(system_error("accept a client", ENOMEM));
    }
  }

  void take_clients() {
    for (int i = 0; i < kClientsPerTurn && is_open(); ++i) {
      SocketAddress peer;
      peer.size = sizeof peer.storage;
      UniqueFd fd(accept4(acceptor_.native_handle(), reinterpret_cast<sockaddr*>(&peer.storage),
                          &peer.size, SOCK_NONBLOCK | SOCK_CLOEXEC));
      if (fd.valid()) {
        tcp::socket socket(io_);
        error_code error;
        socket.assign(tcp_protocol_of(fd.get()), fd.get(), error);
        if (error) continue;
        disable_nagle(fd.release());
        events_.client(std::move(socket), peer);
      } else if (errno == EAGAIN) {
        break;
      } else {
        const Error error = system_error("accept a client", errno);
        if (error.kind == ErrorKind::kResource) return rest(error);
        // Any other error concerns a client that has already left.
      }
    }
    if (is_open()) await_clients();
  }

  void rest(const Error& why) {
    events_.cannot_accept("cannot " + why.message());
    if (!is_open()) return;
    pause_.expires_after(kPause);
    pause_.async_wait([weak = weak_from_this()](const error_code& error) {
      const auto self = weak.lock();
      if (self && self->is_open() && !error) self->await_clients();
    });
  }

  asio::io_context& io_;
  tcp::acceptor acceptor_;
  asio::steady_timer pause_;
  TcpAcceptorEvents events_;
};

TcpAcceptor::TcpAcceptor(asio::io_context& io, UniqueFd listener, TcpAcceptorEvents events)
    : impl_(std::make_shared<Impl>(io, std::move(listener), std::move(events))) {}

TcpAcceptor::~TcpAcceptor() {
  if (impl_) impl_->close();
}

void TcpAcceptor::open() { impl_->await_clients(); }

}  // namespace ddprun
