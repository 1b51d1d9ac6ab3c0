#include "worker_lib/cpu/tcp_door.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "worker_lib/cpu/poll_until.h"

namespace ddprun {
namespace {

constexpr std::size_t kMaxStrangers = 64;

struct Hello {
  std::uint32_t magic = 0x31706464;  // "ddp1", and a check of byte order
  ConnectionUse use = ConnectionUse::kData;
  std::int32_t from = -1;
  std::int32_t to = -1;
  char token[64] = {};
};

Hello make_hello(const std::string& token, int from, int to, ConnectionUse use) {
  Hello hello{.use = use, .from = from, .to = to};
  token.copy(hello.token, sizeof hello.token);
  return hello;
}

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t length = 0;
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
};

Result<SocketAddress> parse(const TcpAddress& address) {
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const std::string port = std::to_string(address.port);
  if (const int code = getaddrinfo(address.host.c_str(), port.c_str(), &hints, &found); code != 0) {
    return Error{.kind = ErrorKind::kInvalidArgument,
                 .doing = "use address '" + address.host + "'",
                 .cause = std::string(gai_strerror(code)) + "; it must be numeric"};
  }
  SocketAddress result;
  std::memcpy(&result.storage, found->ai_addr, found->ai_addrlen);
  result.length = found->ai_addrlen;
  freeaddrinfo(found);
  return result;
}

Result<UniqueFd> make_socket(const SocketAddress& address) {
  UniqueFd socket(::socket(address.get()->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.valid()) return system_error("make a TCP socket", errno);
  return socket;
}

void send_at_once(int socket) {
  const int on = 1;
  setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

std::string to_text(const TcpAddress& address) {
  return address.host + ":" + std::to_string(address.port);
}

}  // namespace

Result<TcpDoor> TcpDoor::open(const std::string& host) {
  TcpDoor door;
  const std::string doing = "listen for other nodes at " + host;
  const Result<SocketAddress> wanted = parse({host, 0});
  if (!wanted) return Error(wanted.error()).within(doing);
  Result<UniqueFd> socket = make_socket(*wanted);
  if (!socket) return socket.error();
  SocketAddress got;
  got.length = sizeof got.storage;
  if (bind(socket->get(), wanted->get(), wanted->length) != 0 ||
      listen(socket->get(), SOMAXCONN) != 0 ||
      getsockname(socket->get(), reinterpret_cast<sockaddr*>(&got.storage), &got.length) != 0) {
    return system_error(doing, errno);
  }
  const auto port = got.storage.ss_family == AF_INET6
                        ? reinterpret_cast<const sockaddr_in6*>(&got.storage)->sin6_port
                        : reinterpret_cast<const sockaddr_in*>(&got.storage)->sin_port;
  door.listener_ = std::move(*socket);
  door.address_ = {host, ntohs(port)};
  return door;
}

void TcpDoor::expect(std::string token, int own_rank, int world_size) {
  token_ = std::move(token);
  own_rank_ = own_rank;
  world_size_ = world_size;
}

std::optional<TcpDoor::Caller> TcpDoor::admit() {
  for (;;) {
    UniqueFd socket(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket.valid()) break;
    if (strangers_.size() == kMaxStrangers) strangers_.pop_front();
    strangers_.push_back({std::move(socket), {}});
  }
  for (auto stranger = strangers_.begin(); stranger != strangers_.end();) {
    char buffer[sizeof(Hello)];
    const ssize_t got =
        recv(stranger->socket.get(), buffer, sizeof(Hello) - stranger->said.size(), MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
      ++stranger;
      continue;
    }
    if (got > 0) stranger->said.append(buffer, static_cast<std::size_t>(got));
    if (got > 0 && stranger->said.size() < sizeof(Hello)) continue;
    Stranger caller = std::move(*stranger);
    stranger = strangers_.erase(stranger);
    if (got <= 0) continue;
    Hello hello;
    std::memcpy(static_cast<void*>(&hello), caller.said.data(), sizeof hello);
    const Hello right = make_hello(token_, hello.from, own_rank_, hello.use);
    if (hello.from < 0 || hello.from >= world_size_ || std::memcmp(&hello, &right, sizeof hello) != 0) {
      continue;
    }
    send_at_once(caller.socket.get());
    return Caller{std::move(caller.socket), hello.from, hello.use};
  }
  return std::nullopt;
}

void TcpDoor::append_watched(std::vector<int>& fds) const {
  fds.push_back(listener_.get());
  for (const Stranger& stranger : strangers_) fds.push_back(stranger.socket.get());
}

Result<UniqueFd> call_at_door(const TcpAddress& address, const std::string& token, int from, int to,
                              ConnectionUse use, TimePoint deadline) {
  const std::string doing = "connect to rank " + std::to_string(to) + " at " + to_text(address);
  const Result<SocketAddress> where = parse(address);
  if (!where) return Error(where.error()).within(doing);
  Result<UniqueFd> socket = make_socket(*where);
  if (!socket) return socket.error();
  const TimePoint start = BootClock::now();
  if (connect(socket->get(), where->get(), where->length) != 0 && errno != EINPROGRESS) {
    return system_error(doing, errno);
  }
  pollfd watched{socket->get(), POLLOUT, 0};
  if (!poll_until({&watched, 1}, deadline)) {
    return timeout_error(doing, "no answer", BootClock::now() - start, deadline - start);
  }
  int code = 0;
  socklen_t length = sizeof code;
  getsockopt(socket->get(), SOL_SOCKET, SO_ERROR, &code, &length);
  if (code != 0) return system_error(doing, code);
  send_at_once(socket->get());
  const Hello hello = make_hello(token, from, to, use);
  // The send buffer of a new connection has room for it.
  if (send(socket->get(), &hello, sizeof hello, MSG_NOSIGNAL) != sizeof hello) {
    return system_error(doing, errno);
  }
  return socket;
}

}  // namespace ddprun
