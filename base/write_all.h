// write_all(): write(2) until all is written, for files: it waits for the disk. Any thread.
#pragma once

#include <unistd.h>

#include <cerrno>
#include <string_view>

namespace ddprun {

// False: errno says why, and some of it may have been written.
inline bool write_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::write(fd, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return false;
    bytes.remove_prefix(static_cast<std::size_t>(count));
  }
  return true;
}

}  // namespace ddprun
