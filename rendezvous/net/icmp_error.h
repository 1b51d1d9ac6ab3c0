// Whether an ICMP message ended a try to connect, and not the host that was called. A firewall that
// rejects with icmp-port-unreachable gives ECONNREFUSED, as a host does on which nobody listens.
//
// Any thread.
#pragma once

namespace ddprun {

// The kernel is to keep ICMP messages about this socket. To be called before connect(). Harmless on
// sockets of other kinds.
void keep_icmp_errors(int socket);
// It is not to keep them any more. A connection that keeps them ends with the first one.
void ignore_icmp_errors(int socket);

// Whether an ICMP message about this socket has come. False, too, where the kernel is older than
// 5.8. REQUIRES: keep_icmp_errors(socket).
bool has_icmp_error(int socket);

}  // namespace ddprun
