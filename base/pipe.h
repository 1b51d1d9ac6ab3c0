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

}  // namespace ddprun
