// Facts about the name service and its speed, for `ddprun doctor`. Every call has its own
// deadline. Any thread.
#pragma once

#include <string>
#include <vector>

#include "launcher/doctor/core/facts.h"
#include "rendezvous/net/tcp_address.h"

namespace ddprun {

// How long to wait for a look-up: less than the five seconds that one lost answer costs.
inline constexpr Duration kLookUpPatience = std::chrono::seconds(3);

struct NamedLookUp {
  LookUp seen;
  std::vector<SocketAddress> addresses;  // empty unless kFound
};

// Looks up the addresses of a name. A numeric address is returned as it is. The port becomes the
// addresses' port.
NamedLookUp look_up_name(const HostPort& name);

// Looks up the name of a numeric address without a port, in the form that PyTorch's store client
// uses. An IPv4 address becomes an IPv4-mapped IPv6 address if this host has IPv6 sockets.
LookUp look_up_address(const std::string& address);

// Returns the servers of a resolv.conf: the first three, as in the C library.
std::vector<std::string> name_servers_of(const std::string& resolv_conf);

// Asks the server for localhost, which it knows without asking other servers.
NameServer ask_name_server(const std::string& address);

// Looks up this host's name and asks the servers of /etc/resolv.conf. Leaves of_addresses empty.
NameFacts look_at_names();

}  // namespace ddprun
