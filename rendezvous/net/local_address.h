// The address by which the others are to reach this host: what somebody asked for (--local-addr),
// and what is most likely right where nobody did. Any thread.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "rendezvous/net/tcp_address.h"

namespace ddprun {

// The numeric address that is meant by
//   a numeric address     itself, whosever it is: behind a NAT it is not this host's
//   a network, 10.0.0.0/8 the first address of this host in it
//   an interface, ib0     its first IPv4 address, else its first IPv6 one that works beyond its link
//   a name                what it leads to; asks the name service, no longer than `allowed`
// kInvalidArgument says what there is instead.
Result<std::string> find_local_address(const std::string& wanted,
                                       const std::vector<InterfaceAddress>& own, Duration allowed);

// Where nobody says: the address on the way to other networks (the default route's); without such a
// way the first address of an interface, IPv4 first; on a host without a network 127.0.0.1.
std::string likely_local_address(const std::vector<InterfaceAddress>& own);

}  // namespace ddprun
