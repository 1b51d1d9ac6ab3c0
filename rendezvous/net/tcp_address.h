// TCP addresses in the kernel's form, and how names are resolved to them.
//
// No function here looks up the name of an address, because one slow name server would stall the
// caller. Value types; any thread.
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

// SocketAddress: an address in the kernel's form.
struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t size = 0;

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  int family() const { return storage.ss_family; }
  std::uint16_t port() const;
  // Returns the numeric address without the port. An IPv4 address inside an IPv6 one is written
  // as IPv4.
  std::string host() const;
};

// Returns "10.0.0.1:29500" or "[::1]:29500"; it is always numeric.
std::string to_text(const SocketAddress& address);

// Return the addresses of a socket's two ends. They have size 0 if the socket is not connected
// or not a TCP socket.
SocketAddress local_address_of(int socket);
SocketAddress peer_address_of(int socket);

// Return the addresses of this host's network interfaces that are up; empty if the kernel does
// not tell.
struct InterfaceAddress {
  std::string interface;
  SocketAddress address;  // port 0
};
std::vector<InterfaceAddress> interface_addresses();

// Returns true if the address belongs to this host.
bool is_local_address(const SocketAddress& address);
bool is_loopback_address(const SocketAddress& address);

// Returns this host's own name, which other hosts may not know.
std::string host_name();

// Returns a numeric address; nullopt for names.
std::optional<SocketAddress> numeric_address(const HostPort& address);

// Returns the addresses of a name or numeric address, in the order in which to try them. It asks
// the name service for names only, and waits at most `allowed`. A lookup that has not ended then
// continues in its own thread, and its result is ignored. kNotFound, kTimeout.
Result<std::vector<SocketAddress>> resolve(const HostPort& address, Duration allowed);

// Does the same without waiting, for event loops. `then` is called once, usually on another
// thread, perhaps long after the caller is gone. It must own what it uses.
using ResolveHandler = std::function<void(Result<std::vector<SocketAddress>>)>;
void resolve_in_background(const HostPort& address, ResolveHandler then);

}  // namespace ddprun
