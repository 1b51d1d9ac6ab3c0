// TCP addresses as the kernel takes them, and how names become such.
//
// Nothing here ever asks for the name of an address: one slow name server would stall the caller.
// Value types; any thread.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/host_port.h"
#include "base/result.h"

namespace ddprun {

// An address of the kernel.
struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t size = 0;

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  int family() const { return storage.ss_family; }
  std::uint16_t port() const;
  // Numeric, without the port; an IPv4 address inside an IPv6 one is written as IPv4.
  std::string host() const;
};

// "10.0.0.1:29500", "[::1]:29500"; always numeric.
std::string to_text(const SocketAddress& address);

// The addresses of a socket's two ends. An unconnected or foreign socket has size 0.
SocketAddress local_address_of(int socket);
SocketAddress peer_address_of(int socket);

// The addresses of this host's network interfaces that are up; empty when the kernel does not say.
struct InterfaceAddress {
  std::string interface;
  SocketAddress address;  // port 0
};
std::vector<InterfaceAddress> interface_addresses();

// Whether the address is one of this host's own.
bool is_local_address(const SocketAddress& address);
bool is_loopback_address(const SocketAddress& address);

// What this host calls itself; other hosts may not know it.
std::string host_name();

// A numeric address; nullopt for names.
std::optional<SocketAddress> numeric_address(const HostPort& address);

// The addresses of a name or numeric address, in the order in which they are to be tried. Asks the
// name service for names only, and then no longer than `allowed`: a look-up that has not ended is
// left to itself. kNotFound, kTimeout.
Result<std::vector<SocketAddress>> resolve(const HostPort& address, Duration allowed);

// The same without waiting, for event loops. `then` is called once, most likely from another
// thread and perhaps long after the caller has lost interest: it owns what it touches.
using ResolveHandler = std::function<void(Result<std::vector<SocketAddress>>)>;
void resolve_in_background(const HostPort& address, ResolveHandler then);

}  // namespace ddprun
