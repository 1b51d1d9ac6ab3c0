// Listening on a TCP port, for every program of ddprun that does so. Any thread.
#pragma once

#include <string>

#include "base/result.h"
#include "base/unique_fd.h"
#include "rendezvous/net/tcp_address.h"

namespace ddprun {

struct Listener {
  UniqueFd socket;   // bound, listening, non-blocking, close-on-exec
  HostPort address;  // what it is bound to, with the port that was really taken
};

// Binds and listens, so that clients can connect from now on; they wait until somebody accepts.
// host: a numeric address, or "*" or "" for every address of this machine (IPv6 and IPv4; IPv4
// alone where the machine has no IPv6). port 0 takes a free one. Names are refused: what they mean
// may change. kInvalidArgument; a port that is taken or an address of another machine: the kernel's
// word.
Result<Listener> listen_tcp(const HostPort& address);

// The same on any free port of the range. Which one is left to chance, so that one that was given
// back is not soon taken again by those whom its late callers did not mean.
Result<Listener> listen_tcp(const std::string& host, PortRange ports);

// Keeps a free port of the range (0-0: any) for another process of this host, which is to listen there: until the
// socket is closed nobody is given the port who did not ask for it by number and with SO_REUSEADDR, as servers do.
// The socket is bound, and does not listen.
Result<Listener> reserve_tcp(const std::string& host, PortRange ports);

}  // namespace ddprun
