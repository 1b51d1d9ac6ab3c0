// A pipe: what is written to one end is read from the other. Both are closed on exec.
#pragma once

#include "base/result.h"
#include "base/unique_fd.h"

namespace ddprun {

struct Pipe {
  UniqueFd read;
  UniqueFd write;
};

// kResource where no descriptors are left.
Result<Pipe> make_pipe();

// Lets the pipe hold so many bytes, if it holds fewer now: whoever reads and writes much is woken less
// often. What is no pipe, and one of a user who has used up what the kernel grants for pipes (64 MiB),
// stays as it is.
void widen_pipe(int descriptor, int bytes);

}  // namespace ddprun
