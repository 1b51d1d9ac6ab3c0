// Chooses the address at which other hosts can reach this one: the one that the user wants
// (--local-addr), or else the most likely one. Any thread.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "rendezvous/net/tcp_address.h"

namespace ddprun {

// Returns the numeric address that `wanted` names:
//   a numeric address     itself, even if it is not this host's, as behind a NAT
//   a network, 10.0.0.0/8 the first address of this host in it
//   an interface, ib0     its first IPv4 address, else its first non-link-local IPv6 address
//   a name                its address; asks the name service for at most `allowed`
// kInvalidArgument lists what exists instead.
Result<std::string> find_local_address(const std::string& wanted,
                                       const std::vector<InterfaceAddress>& own, Duration allowed);

// Returns the address on the route to other networks (the default route). If there is no such
// route, returns the first address of an interface, IPv4 first. On a host without a network,
// returns 127.0.0.1.
std::string likely_local_address(const std::vector<InterfaceAddress>& own);

// Returns this host's address towards another, by the kernel's routes. Empty: no route. Sends
// nothing.
std::string source_address_towards(const SocketAddress& address);

}  // namespace ddprun
