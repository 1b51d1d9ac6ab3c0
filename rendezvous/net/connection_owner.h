// Whose process holds the other end of a TCP connection inside this host.
//
// The kernel tells through sock_diag; where that cannot be asked, through /proc/net/tcp. It says who made
// the socket. Any thread.
#pragma once

#include <sys/types.h>

#include <cstdint>

#include "base/result.h"
#include "rendezvous/net/tcp_address.h"

namespace ddprun {

// The user of the socket at `peer` that is connected to our `local`. An error where nobody holds that
// socket any more (its process has closed it), where it is on another host or in another network
// namespace, where the kernel does not say, and where this user namespace has no id for the user.
Result<uid_t> owner_of_connection(const SocketAddress& peer, const SocketAddress& local);

struct SocketOwner {
  uid_t user;           // as this user namespace calls it
  std::uint64_t inode;  // of the socket
};
// The same by /proc/net/tcp and tcp6 alone; for tests.
Result<SocketOwner> owner_by_proc(const SocketAddress& peer, const SocketAddress& local);

// Whether a process that this one may look into has the socket open. Those are processes of the same
// user, whatever its id is; root may look into others.
bool may_see_holder(std::uint64_t inode);

// Whether both ends of the connection are on this host.
bool is_within_this_host(const SocketAddress& peer, const SocketAddress& local);

}  // namespace ddprun
