// write_all() and write_until_error(): write(2) until all is written. They wait for the disk, or
// for whoever reads. Any thread.
#pragma once

#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <string_view>

namespace ddprun {

// How many bytes were written; where not all were, errno says why. Somebody who shares a terminal
// or a pipe may have made it non-blocking; that is waited for, too. write: what is called for
// write(2).
template <class Write = decltype(&::write)>
std::size_t write_until_error(int fd, std::string_view bytes, Write write = ::write) {
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t count = write(fd, bytes.data() + done, bytes.size() - done);
    if (count >= 0) {
      done += static_cast<std::size_t>(count);
    } else if (errno == EAGAIN) {
      pollfd writable{.fd = fd, .events = POLLOUT, .revents = 0};
      ::poll(&writable, 1, -1);
    } else if (errno != EINTR) {
      break;
    }
  }
  return done;
}

// False: errno says why, and some of it may have been written.
template <class Write = decltype(&::write)>
bool write_all(int fd, std::string_view bytes, Write write = ::write) {
  return write_until_error(fd, bytes, write) == bytes.size();
}

}  // namespace ddprun
