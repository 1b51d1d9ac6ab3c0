// Tells whether an ICMP message, instead of the peer's host, ended an attempt to connect. A
// firewall that rejects with icmp-port-unreachable causes ECONNREFUSED, as does a host on which
// no process listens.
//
// Any thread.
#pragma once

namespace ddprun {

// Makes the kernel keep ICMP messages about this socket. Call it before connect(). It has no
// effect on other kinds of sockets.
void keep_icmp_errors(int socket);
// Makes the kernel stop keeping them. The first ICMP message ends a connection that keeps them.
void ignore_icmp_errors(int socket);

// Returns true if an ICMP message about this socket has come. Returns false on kernels older
// than 5.8. REQUIRES: keep_icmp_errors(socket).
bool has_icmp_error(int socket);

}  // namespace ddprun
