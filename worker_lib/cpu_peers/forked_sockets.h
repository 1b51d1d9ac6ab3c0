// Closes the TCP connections of a parent's groups in the child of a fork. While a copy of a
// connection is open, the other end does not learn that the parent is dead.
//
// For the child only, which has one thread.
#pragma once

#include <span>

#include "base/host_port.h"

namespace ddprun {

// Closes this process's TCP sockets that have one of these numeric addresses at either end. The
// connections themselves stay open as long as the parent has them.
void close_sockets_at(std::span<const HostPort> addresses);

}  // namespace ddprun
