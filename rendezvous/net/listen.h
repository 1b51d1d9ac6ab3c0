// Listens on a TCP port, for every program of ddprun. Any thread.
#pragma once

#include <string>

#include "base/result.h"
#include "base/unique_fd.h"
#include "rendezvous/net/tcp_address.h"

namespace ddprun {

struct Listener {
  UniqueFd socket;   // bound, listening, non-blocking, close-on-exec
  HostPort address;  // the bound address, with the actual port
};

// Binds and listens. Clients can connect at once, and wait until they are accepted.
// - host: a numeric address, or "*" or "" for every address of this machine (IPv6 and IPv4; only
//   IPv4 if the machine has no IPv6). Names are refused with kInvalidArgument, because their
//   meaning may change.
// - port: 0 selects a free one.
//
// If the port is taken or the address is another machine's, returns the kernel's error.
Result<Listener> listen_tcp(const HostPort& address);

// Does the same on any free port of the range. The port is random, so that a released port is
// not soon used again. Otherwise late clients of its previous owner would reach the new one.
Result<Listener> listen_tcp(const std::string& host, PortRange ports);

// Reserves a free port of the range (0-0: any) for another process of this host that will listen
// there. The socket is bound and does not listen. Until it is closed, the kernel assigns the
// port to no other process, except one that requests this port number with SO_REUSEADDR, as
// servers do.
Result<Listener> reserve_tcp(const std::string& host, PortRange ports);

}  // namespace ddprun
