#include "worker_lib/cpu_peers/peer_listener.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/poll_until.h"
#include "base/would_block.h"
#include "rendezvous/net/blocking_socket.h"
#include "worker_lib/collective/rank_names.h"

namespace ddprun {
namespace {

// Pending connections that may exist beyond those of the group's ranks (one for each use).
constexpr std::size_t kMorePending = 64;
constexpr std::size_t kUses = 3;

struct Hello {
  std::uint32_t magic = 0x31706464;  // "ddp1"; also checks the byte order
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

std::string bytes_of(const Hello& hello) {
  return {reinterpret_cast<const char*>(&hello), sizeof hello};
}

std::string connecting(const HostPort& address, int to) {
  return "connect to " + name_rank(to) + " at " + to_text(address);
}

Result<SocketAddress> address_of_peer(const HostPort& address, int to) {
  if (const std::optional<SocketAddress> numeric = numeric_address(address)) return *numeric;
  return Error{.kind = ErrorKind::kProtocol,
               .doing = connecting(address, to),
               .cause = "the address is not numeric"};
}

}  // namespace

Result<PeerListener> PeerListener::open(const std::string& host, PortRange ports) {
  Result<Listener> listener = listen_tcp(host, ports);
  if (!listener) return listener.error();
  return PeerListener(std::move(*listener));
}

void PeerListener::expect(std::string token, int own_rank, int world_size) {
  token_ = std::move(token);
  own_rank_ = own_rank;
  world_size_ = world_size;
}

Result<std::optional<PeerListener::AcceptedPeer>> PeerListener::admit(
    std::initializer_list<ConnectionUse> uses, TimePoint until) {
  for (;;) {
    if (const Result<void> let_in = accept_pending(); !let_in) return let_in.error();
    read_pending();
    const auto wanted = std::ranges::find_if(accepted_, [&](const AcceptedPeer& peer) {
      return std::ranges::find(uses, peer.use) != uses.end();
    });
    if (wanted != accepted_.end()) {
      AcceptedPeer peer = std::move(*wanted);
      accepted_.erase(wanted);
      return std::optional<AcceptedPeer>(std::move(peer));
    }
    std::vector<pollfd> watched;
    watch(watched);
    if (!poll_until(watched, until)) return std::optional<AcceptedPeer>();
  }
}

void PeerListener::watch(std::vector<pollfd>& watched) const {
  watched.push_back({listener_.socket.get(), POLLIN, 0});
  for (const PendingConnection& pending : pending_)
    watched.push_back({pending.socket.get(), POLLIN, 0});
}

Result<void> PeerListener::accept_pending() {
  for (;;) {
    UniqueFd socket(
        accept4(listener_.socket.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (socket.valid()) {
      // A whole job may have connected since the last look. Read their hellos before the oldest
      // is dropped.
      const std::size_t limit = kUses * world_size_ + kMorePending;
      if (pending_.size() >= limit) read_pending();
      if (pending_.size() >= limit) pending_.pop_front();
      pending_.push_back({std::move(socket), {}});
    } else if (errno == EAGAIN) {
      return {};
    } else {
      Error error = system_error("accept ranks of other nodes", errno);
      if (error.kind == ErrorKind::kResource) return error;
    }
  }
}

void PeerListener::read_pending() {
  for (auto pending = pending_.begin(); pending != pending_.end();) {
    char buffer[sizeof(Hello)];
    const ssize_t got =
        recv(pending->socket.get(), buffer, sizeof(Hello) - pending->said.size(), MSG_DONTWAIT);
    if (got < 0 && would_block(errno)) {
      ++pending;
      continue;
    }
    if (got > 0) pending->said.append(buffer, got);
    if (got > 0 && pending->said.size() < sizeof(Hello)) continue;
    PendingConnection peer = std::move(*pending);
    pending = pending_.erase(pending);
    if (got <= 0) continue;
    Hello hello;
    std::memcpy(static_cast<void*>(&hello), peer.said.data(), sizeof hello);
    const Hello right = make_hello(token_, hello.from, own_rank_, hello.use);
    if (hello.from < 0 || hello.from >= world_size_ ||
        std::memcmp(&hello, &right, sizeof hello) != 0) {
      continue;
    }
    disable_nagle(peer.socket.get());
    accepted_.push_back({std::move(peer.socket), hello.from, hello.use});
  }
}

Result<UniqueFd> connect_to_peer(const HostPort& address, const std::string& token, int from,
                                 int to, ConnectionUse use, const Deadline& deadline) {
  const Result<SocketAddress> peer = address_of_peer(address, to);
  if (!peer) return peer.error();
  Result<BlockingSocket> socket = BlockingSocket::connect(*peer, deadline);
  if (!socket) return socket.error().within(connecting(address, to));
  const Result<void> said = socket->send_all(bytes_of(make_hello(token, from, to, use)), deadline);
  if (!said) return said.error().within(connecting(address, to));
  return std::move(*socket).take();
}

Result<BegunConnect> begin_connect_to_peer(const HostPort& address, const std::string& token,
                                           int from, int to, ConnectionUse use) {
  const std::string doing = connecting(address, to);
  const Result<SocketAddress> peer = address_of_peer(address, to);
  if (!peer) return peer.error();
  UniqueFd socket(::socket(peer->family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket.valid()) return system_error(doing, errno);
  disable_nagle(socket.get());
  // A refused connection is reported by the first write.
  if (connect(socket.get(), peer->get(), peer->size) != 0 && errno != EINPROGRESS &&
      errno != ECONNREFUSED) {
    return system_error(doing, errno);
  }
  return BegunConnect{std::move(socket), bytes_of(make_hello(token, from, to, use))};
}

}  // namespace ddprun
