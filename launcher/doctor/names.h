// What the name service says, and how long it takes: facts for `ddprun doctor`. Every call has a
// deadline of its own; any thread.
#pragma once

#include <string>
#include <vector>

#include "launcher/doctor/core/facts.h"
#include "rendezvous/net/tcp_address.h"

namespace ddprun {

// How long a look-up is waited for: below the five seconds that one lost answer costs.
inline constexpr Duration kLookUpPatience = std::chrono::seconds(3);

struct NamedLookUp {
  LookUp seen;
  std::vector<SocketAddress> addresses;  // empty unless kFound
};

// The addresses of a name, or of a numeric address itself. port: of the addresses.
NamedLookUp look_up_name(const HostPort& name);

// The name of an address, asked for as PyTorch's store client does: an IPv4 address in IPv6's form
// where this host has IPv6 sockets. A numeric address without a port.
LookUp look_up_address(const std::string& address);

// The servers of a resolv.conf, at most three, as the C library takes them.
std::vector<std::string> name_servers_of(const std::string& resolv_conf);

// Asks the server itself for localhost, which it knows without asking others.
NameServer ask_name_server(const std::string& address);

// This host's name, and the servers of /etc/resolv.conf; of_addresses is left empty.
NameFacts look_at_names();

}  // namespace ddprun
