#include "rendezvous/net/local_address.h"

#include <sys/socket.h>

#include <set>

#include "base/joined.h"
#include "base/unique_fd.h"
#include "rendezvous/net/address_set.h"

namespace ddprun {
namespace {

bool is_link_local(const SocketAddress& address) {
  const auto& ipv6 = reinterpret_cast<const sockaddr_in6&>(address.storage);
  return address.family() == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&ipv6.sin6_addr);
}

std::string names_of(const std::vector<InterfaceAddress>& own) {
  std::set<std::string> names;
  for (const InterfaceAddress& one : own) names.insert(one.interface);
  return names.empty() ? "none" : joined(names);
}

std::string addresses_of(const std::vector<InterfaceAddress>& own) {
  std::vector<std::string> all;
  for (const InterfaceAddress& one : own) {
    all.push_back(one.address.host() + " (" + one.interface + ")");
  }
  return all.empty() ? "none" : joined(all);
}

Result<std::string> find_in_network(const std::string& wanted,
                                    const std::vector<InterfaceAddress>& own) {
  const Result<Network> network = Network::parse(wanted);
  if (!network) return network.error();
  for (const InterfaceAddress& one : own) {
    if (network->contains(one.address)) return one.address.host();
  }
  return invalid_argument("no address of this host is in " + wanted +
                          "; its addresses: " + addresses_of(own));
}

// Returns the interface's address. Empty: there is no such interface, or it has no usable
// address.
std::string find_at_interface(const std::string& wanted, const std::vector<InterfaceAddress>& own) {
  std::string found;
  for (const InterfaceAddress& one : own) {
    if (one.interface != wanted) continue;
    if (one.address.family() == AF_INET) return one.address.host();
    if (found.empty() && !is_link_local(one.address)) found = one.address.host();
  }
  return found;
}

// Returns the address of the default route; empty: there is no route. Connecting a datagram
// socket sends nothing, but makes the kernel choose a route and an address for it. The
// destination is in a network that is reserved for documentation.
std::string routed_address() {
  const std::optional<SocketAddress> far = numeric_address({"192.0.2.1", 9});
  return source_address_towards(*far);
}

}  // namespace

Result<std::string> find_local_address(const std::string& wanted,
                                       const std::vector<InterfaceAddress>& own, Duration allowed) {
  if (numeric_address({wanted, 0})) return wanted;
  if (wanted.find('/') != std::string::npos) return find_in_network(wanted, own);
  if (std::string found = find_at_interface(wanted, own); !found.empty()) return found;
  Result<std::vector<SocketAddress>> named = resolve({wanted, 0}, allowed);
  if (named) return named->front().host();
  return invalid_argument("'" + wanted + "' is not an address, an interface of this host (" +
                          names_of(own) + ") or a host name: " + named.error().message());
}

std::string likely_local_address(const std::vector<InterfaceAddress>& own) {
  if (std::string routed = routed_address(); !routed.empty()) return routed;
  std::string found;
  for (const InterfaceAddress& one : own) {
    if (is_loopback_address(one.address) || is_link_local(one.address)) continue;
    if (one.address.family() == AF_INET) return one.address.host();
    if (found.empty()) found = one.address.host();
  }
  return found.empty() ? "127.0.0.1" : found;
}

std::string source_address_towards(const SocketAddress& address) {
  const UniqueFd udp(socket(address.family(), SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!udp.valid() || connect(udp.get(), address.get(), address.size) != 0) return "";
  return local_address_of(udp.get()).host();
}

}  // namespace ddprun
