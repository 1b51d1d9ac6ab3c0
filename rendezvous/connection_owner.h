// Whose process holds the other end of a TCP connection inside this host.
//
// The kernel tells through sock_diag; where that cannot be asked, through /proc/net/tcp. It says who made
// the socket. Any thread.
#pragma once

#include <sys/types.h>

#include "base/result.h"
#include "rendezvous/tcp_address.h"

namespace ddprun {

// The user of the socket at `peer` that is connected to our `local`. An error where nobody holds that
// socket any more (its process has closed it), where it is on another host or in another network
// namespace, and where the kernel does not say.
Result<uid_t> owner_of_connection(const SocketAddress& peer, const SocketAddress& local);

// The same by /proc/net/tcp and tcp6 alone; for tests.
Result<uid_t> owner_by_proc(const SocketAddress& peer, const SocketAddress& local);

// Whether both ends of the connection are on this host.
bool is_within_this_host(const SocketAddress& peer, const SocketAddress& local);

}  // namespace ddprun
