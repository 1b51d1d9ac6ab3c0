// What a socket that must not block says when it has nothing to say. Pure; any thread.
#pragma once

#include <cerrno>

namespace ddprun {

// Whether this errno of send(2), recv(2) or accept(2) means that one may try again, and not that
// something broke.
inline bool would_block(int error) { return error == EAGAIN || error == EINTR; }

}  // namespace ddprun
