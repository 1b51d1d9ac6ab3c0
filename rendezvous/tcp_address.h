// TCP addresses as people write them and as the kernel takes them.
//
// Nothing here ever asks for the name of an address: one slow name server would stall the caller.
// Value types; any thread.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/result.h"

namespace ddprun {

// Host and port as given: "10.0.0.1:29500", "[::1]:0", "node7:29500", "*:29500".
struct HostPort {
  std::string host;  // without brackets
  std::uint16_t port = 0;
};

// kInvalidArgument says what is wrong with the text. The host may be empty (":29500").
Result<HostPort> parse_host_port(std::string_view text);

// "10.0.0.1:29500", "[::1]:29500", "node7:29500".
std::string to_text(const HostPort& address);

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

// A numeric address; nullopt for names.
std::optional<SocketAddress> numeric_address(const HostPort& address);

// The addresses of a name or numeric address, in the order in which they are to be tried. Asks the
// name service for names only, and then no longer than `allowed`: a look-up that has not ended is
// left to itself. kNotFound, kTimeout.
Result<std::vector<SocketAddress>> resolve(const HostPort& address, Duration allowed);

}  // namespace ddprun
