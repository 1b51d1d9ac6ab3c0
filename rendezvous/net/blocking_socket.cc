#include "rendezvous/net/blocking_socket.h"

#include <fcntl.h>
#include <netinet/tcp.h>

#include <cerrno>
#include <cstring>

#include "base/poll_until.h"
#include "base/would_block.h"

namespace ddprun {
namespace {

// A receive whose remaining time is longer than this waits in recv() instead of poll(). This
// saves one system call in each round trip. recv() returns after this time, so that the deadline
// can be checked.
constexpr Duration kOneReceive = std::chrono::seconds(1);

// Waits until the socket can do what `events` say, has failed, or the deadline has passed.
Result<void> await(int socket, short events, const Deadline& deadline, const char* what) {
  pollfd entry{.fd = socket, .events = events, .revents = 0};
  if (poll_until({&entry, 1}, deadline.when())) return {};
  return timeout_error("", what, deadline.waited(), deadline.allowed());
}

// Returns true if the socket is connected to itself. This happens if no process listens on a
// port of this host that is in the kernel's range for outgoing connections. About once in ten
// thousand attempts, the connecting socket gets that very port.
bool is_connected_to_itself(int socket) {
  const SocketAddress local = local_address_of(socket);
  const SocketAddress peer = peer_address_of(socket);
  return local.size > 0 && local.size == peer.size &&
         std::memcmp(&local.storage, &peer.storage, local.size) == 0;
}

}  // namespace

void disable_nagle(int socket) {
  const int yes = 1;
  setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
}

void enable_keepalive(int socket) {
  const auto set = [&](int level, int name, int value) {
    setsockopt(socket, level, name, &value, sizeof value);
  };
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, 60'000);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 30);
  set(IPPROTO_TCP, TCP_KEEPINTVL, 10);
  set(IPPROTO_TCP, TCP_KEEPCNT, 3);
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
}

Result<BlockingSocket> BlockingSocket::connect(const SocketAddress& address,
                                               const Deadline& deadline) {
  UniqueFd socket(::socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket.valid()) return system_error("", errno);
  if (::connect(socket.get(), address.get(), address.size) != 0) {
    if (errno != EINPROGRESS) return system_error("", errno);
    const Result<void> done = await(socket.get(), POLLOUT, deadline, "no answer");
    if (!done) return done.error();
    int failure = 0;
    socklen_t size = sizeof failure;
    getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &failure, &size);
    if (failure != 0) return system_error("", failure);
  }
  if (is_connected_to_itself(socket.get())) return system_error("", ECONNREFUSED);
  return of(std::move(socket));
}

Result<BlockingSocket> BlockingSocket::of(UniqueFd socket) {
  disable_nagle(socket.get());
  const timeval one_receive{.tv_sec = std::chrono::ceil<std::chrono::seconds>(kOneReceive).count()};
  if (fcntl(socket.get(), F_SETFL, 0) != 0 ||
      setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &one_receive, sizeof one_receive) != 0) {
    return system_error("", errno);
  }
  return BlockingSocket(std::move(socket));
}

Result<void> BlockingSocket::send_all(std::string_view bytes, const Deadline& deadline) {
  while (!bytes.empty()) {
    const Result<std::size_t> sent = send_some(bytes);
    if (!sent) return sent.error();
    bytes.remove_prefix(*sent);
    if (*sent > 0) continue;
    const Result<void> ready = await(socket_.get(), POLLOUT, deadline, "it does not read");
    if (!ready) return ready.error();
  }
  return {};
}

Result<std::size_t> BlockingSocket::send_some(std::string_view bytes) {
  for (;;) {
    const ssize_t sent =
        ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) return static_cast<std::size_t>(sent);
    if (errno == EINTR) continue;
    if (would_block(errno)) return 0;
    return system_error("", errno);
  }
}

Result<std::size_t> BlockingSocket::receive_now(std::span<char> space) {
  return receive_with(MSG_DONTWAIT, space);
}

Result<std::size_t> BlockingSocket::receive_with(int flags, std::span<char> space) {
  for (;;) {
    const ssize_t got = ::recv(socket_.get(), space.data(), space.size(), flags);
    if (got > 0) return static_cast<std::size_t>(got);
    if (got == 0) {
      return Error{.kind = ErrorKind::kConnection, .cause = "it closed the connection"};
    }
    if (errno == EINTR) continue;
    if (would_block(errno)) return 0;
    return system_error("", errno);
  }
}

Result<void> BlockingSocket::wait_until_ready(const Deadline& deadline) {
  return await(socket_.get(), POLLIN | POLLOUT, deadline, "it does not read");
}

Result<std::size_t> BlockingSocket::receive(std::span<char> space, const Deadline& deadline) {
  for (;;) {
    const bool waits_in_recv = deadline.remaining() > kOneReceive;
    if (!waits_in_recv) {
      // Waits first, because an answer is rarely there already.
      const Result<void> ready = await(socket_.get(), POLLIN, deadline, "no answer");
      if (!ready) return ready.error();
    }
    const Result<std::size_t> got = receive_with(waits_in_recv ? 0 : MSG_DONTWAIT, space);
    if (!got || *got > 0) return got;
  }
}

UniqueFd BlockingSocket::take() && {
  fcntl(socket_.get(), F_SETFL, O_NONBLOCK);
  return std::move(socket_);
}

bool BlockingSocket::is_finished() const {
  char byte = 0;
  const ssize_t got = ::recv(socket_.get(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  return got >= 0 || !would_block(errno);
}

}  // namespace ddprun
