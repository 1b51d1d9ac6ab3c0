// write_all() and write_until_error(): repeat write(2) until all bytes are written. They wait
// for the disk or for the reader. Any thread.
#pragma once

#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <string_view>

namespace ddprun {

// Returns how many bytes were written. If not all, errno has the reason. Another process that
// shares a terminal or a pipe may have made it non-blocking; then this waits, too. write:
// called in place of write(2).
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

// Returns false if not all bytes were written. errno has the reason, and some may have been
// written.
template <class Write = decltype(&::write)>
bool write_all(int fd, std::string_view bytes, Write write = ::write) {
  return write_until_error(fd, bytes, write) == bytes.size();
}

}  // namespace ddprun
