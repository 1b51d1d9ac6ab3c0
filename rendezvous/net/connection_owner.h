// Finds the owner of the other end of a TCP connection inside this host.
//
// It asks the kernel by sock_diag or, if that is not possible, by /proc/net/tcp. The kernel
// names the user that created the socket. Any thread.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "base/result.h"
#include "rendezvous/net/tcp_address.h"

namespace ddprun {

// Returns the user of the socket at `peer` that is connected to our `local`. It is an error if
// - the process has closed the socket,
// - the socket is on another host or in another network namespace,
// - the kernel does not tell, or
// - this user namespace has no id for the user.
Result<uid_t> owner_of_connection(const SocketAddress& peer, const SocketAddress& local);

// Returns why a server that serves only this user's processes, and root's, may not serve the
// connection; empty: it may. Connections from other hosts may be served. server: for the text.
std::string why_not_this_user(const std::string& server, const SocketAddress& peer,
                              const SocketAddress& local);

struct SocketOwner {
  uid_t user;           // id in this user namespace
  std::uint64_t inode;  // of the socket
};
// Does the same, but only by /proc/net/tcp and tcp6; for tests.
Result<SocketOwner> owner_by_proc(const SocketAddress& peer, const SocketAddress& local);

// Returns true if a process that this one may inspect has the socket open. Those are processes
// of the same user, whatever its id; root may inspect others.
bool may_see_holder(std::uint64_t inode);

// Returns true if both ends of the connection are on this host.
bool is_within_this_host(const SocketAddress& peer, const SocketAddress& local);

}  // namespace ddprun
