// FileCalls: the system calls that change files, in one place, so that a test can put others in
// theirs: calls that fail, calls that are written down. Programs use the real ones.
//
// Each does what the call of its name does, and sets errno. Any thread.
#pragma once

#include <sys/types.h>

#include <cerrno>
#include <cstddef>

namespace ddprun {

class FileCalls {
 public:
  virtual ~FileCalls() = default;

  virtual int open(const char* path, int flags, mode_t mode);
  virtual ssize_t write(int fd, const void* data, std::size_t bytes);
  virtual int fsync(int fd);
  virtual int close(int fd);
  virtual int mkdir(const char* path, mode_t mode);
  virtual int rename(const char* from, const char* to);
  virtual int link(const char* from, const char* to);
  virtual int unlink(const char* path);
};

// Those in use.
FileCalls& file_calls();

// For tests: puts others into use, for all threads, until it ends. One at a time; nothing may be in
// the middle of a call when it begins or ends.
class ScopedFileCalls {
 public:
  explicit ScopedFileCalls(FileCalls& calls);
  ~ScopedFileCalls();
  ScopedFileCalls(const ScopedFileCalls&) = delete;
  ScopedFileCalls& operator=(const ScopedFileCalls&) = delete;
};

// Makes a call that returns -1 on failure until no signal interrupts it: on a network's file system
// also open() and fsync() can be. Not for close(), after which the descriptor is gone in any case.
template <class Call>
auto uninterrupted(Call&& call) {
  auto result = call();
  while (result == -1 && errno == EINTR) result = call();
  return result;
}

}  // namespace ddprun
