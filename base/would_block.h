// would_block(): recognizes errno values that mean "try again" on a non-blocking socket. Pure;
// any thread.
#pragma once

#include <cerrno>

namespace ddprun {

// Returns whether this errno of send(2), recv(2) or accept(2) means "try again", not a failure.
inline bool would_block(int error) { return error == EAGAIN || error == EINTR; }

}  // namespace ddprun
