// would_block(): recognizes errno values that mean "try again" on a non-blocking socket. Pure;
// any thread.
#pragma once

#include <sys/types.h>

#include <cerrno>

namespace ddprun {

// Returns whether this errno of send(2), recv(2) or accept(2) means "try again", not a failure.
inline bool would_block(int error) { return error == EAGAIN || error == EINTR; }

// Interprets the result of a non-blocking send or recv: returns the bytes moved; 0: nothing can be
// moved now; -1: the connection is closed.
inline ssize_t not_now_or_closed(ssize_t moved) {
  if (moved > 0) return moved;
  return moved < 0 && would_block(errno) ? 0 : -1;
}

}  // namespace ddprun
