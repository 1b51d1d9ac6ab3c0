// Pipe: a pipe: bytes written to one end are read from the other. Both ends are closed on exec.
#pragma once

#include "base/result.h"
#include "base/unique_fd.h"

namespace ddprun {

struct Pipe {
  UniqueFd read;
  UniqueFd write;
};

// Makes a pipe. kResource: no descriptors are left.
Result<Pipe> make_pipe();

// Raises the capacity of a pipe to `bytes`, if it is smaller now. So a process that reads or writes
// much is woken less often. The capacity stays as it is if `descriptor` is not a pipe. It also
// stays if the user has used up what the kernel grants for pipes (64 MiB).
void widen_pipe(int descriptor, int bytes);

}  // namespace ddprun
