#include "rendezvous/net/listen.h"

#include <cerrno>
#include <climits>

#include "base/random_id.h"
#include "base/rng.h"

namespace ddprun {
namespace {

enum class Use {
  kListen,
  kReserve,  // no other process has the port, or had it a moment ago
  // No process listens there; connections may have just ended, or another process reserves it,
  // too.
  kReserveStale,
};

Result<Listener> open_on(const SocketAddress& address, Use use, const std::string& doing) {
  UniqueFd socket(::socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket.valid()) return system_error(doing, errno);
  const int yes = 1;
  const int no = 0;
  const auto allow_reuse = [&] {
    setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  };
  if (use != Use::kReserve) allow_reuse();
  if (address.family() == AF_INET6) {
    setsockopt(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof no);
  }
  // The kernel reduces the backlog to its somaxconn.
  if (bind(socket.get(), address.get(), address.size) != 0 ||
      (use == Use::kListen && listen(socket.get(), INT_MAX) != 0)) {
    return system_error(doing, errno);
  }
  allow_reuse();
  const SocketAddress bound = local_address_of(socket.get());
  return Listener{.socket = std::move(socket),
                  .address = {.host = bound.host(), .port = bound.port()}};
}

// Returns true for both errors of a machine without IPv6: no such sockets, or no such address.
bool has_no_ipv6(const Error& error) {
  return error.sys_errno == EAFNOSUPPORT || error.sys_errno == EADDRNOTAVAIL;
}

Result<Listener> open_at(const HostPort& address, Use use) {
  const std::string doing = "listen on " + to_text(address);
  if (address.host.empty() || address.host == "*") {
    Result<Listener> both = open_on(*numeric_address({"::", address.port}), use, doing);
    if (both || !has_no_ipv6(both.error())) return both;
    return open_on(*numeric_address({"0.0.0.0", address.port}), use, doing);
  }
  const std::optional<SocketAddress> numeric = numeric_address(address);
  if (!numeric) {
    return invalid_argument(
               "'" + address.host +
               "' is not a numeric address (127.0.0.1, ::1, or * for all addresses of this host)")
        .within(doing);
  }
  return open_on(*numeric, use, doing);
}

Result<Listener> open_in(const std::string& host, PortRange ports, Use use) {
  const unsigned count = ports.last - ports.first + 1U;
  const auto start = static_cast<unsigned>(Rng(random_seed()).below(count));
  for (unsigned i = 0; i < count; ++i) {
    const auto port = static_cast<std::uint16_t>(ports.first + (start + i) % count);
    Result<Listener> listener = open_at(HostPort{host, port}, use);
    if (listener || listener.error().sys_errno != EADDRINUSE) return listener;
  }
  return Error{.kind = ErrorKind::kSystem,
               .doing = "listen on " + (host.empty() ? "*" : host),
               .cause = "every port of " + to_text(ports) + " is taken",
               .sys_errno = EADDRINUSE};
}

}  // namespace

Result<Listener> listen_tcp(const HostPort& address) { return open_at(address, Use::kListen); }

Result<Listener> listen_tcp(const std::string& host, PortRange ports) {
  return open_in(host, ports, Use::kListen);
}

Result<Listener> reserve_tcp(const std::string& host, PortRange ports) {
  Result<Listener> kept = open_in(host, ports, Use::kReserve);
  if (kept || kept.error().sys_errno != EADDRINUSE) return kept;
  return open_in(host, ports, Use::kReserveStale);
}

}  // namespace ddprun
