#include "base/pipe.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

namespace ddprun {

Result<Pipe> make_pipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return system_error("make a pipe", errno);
  return Pipe{UniqueFd(ends[0]), UniqueFd(ends[1])};
}

void widen_pipe(int descriptor, int bytes) {
  const int present = fcntl(descriptor, F_GETPIPE_SZ);
  if (present > 0 && present < bytes) fcntl(descriptor, F_SETPIPE_SZ, bytes);
}

}  // namespace ddprun
