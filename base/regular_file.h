// open_regular_file(): opens a file whose name may belong to a pipe or a device. Any thread.
#pragma once

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <string>

#include "base/result.h"
#include "base/unique_fd.h"

namespace ddprun {

// Opens a regular file for reading; never waits, as open() of a FIFO does. kCorrupt: it is a
// FIFO, a directory, a socket or a device. Otherwise fails as open(2).
inline Result<UniqueFd> open_regular_file(const std::string& path) {
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  // ENXIO: a socket, or a device without a driver.
  if (!fd.valid() && errno != ENXIO) return system_error("open " + path, errno);
  struct stat status {};
  if (fd.valid() && ::fstat(fd.get(), &status) != 0) return system_error("open " + path, errno);
  if (fd.valid() && S_ISREG(status.st_mode)) return fd;
  const char* kind = "a socket or a device";
  if (S_ISFIFO(status.st_mode)) kind = "a FIFO";
  if (S_ISDIR(status.st_mode)) kind = "a directory";
  return Error{.kind = ErrorKind::kCorrupt,
               .doing = "open " + path,
               .cause = std::string("it is ") + kind + ", not a regular file"};
}

}  // namespace ddprun
