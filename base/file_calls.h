// FileCalls: the system calls that change files, in one place. A test can replace them by calls
// that fail, or calls that are recorded. Programs use the real ones.
//
// Each function does what the system call of its name does, and sets errno. Any thread.
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

// Returns the calls in use.
FileCalls& file_calls();

// Puts other calls into use, for all threads; for tests. Null: the real ones. Returns those that
// were in use. No call may be running.
FileCalls* replace_file_calls(FileCalls* calls);

// Repeats a call, which returns -1 on failure, until no signal interrupts it. On a network file
// system, open() and fsync() can be interrupted, too. Do not use it for close(): the descriptor
// is closed in any case.
template <class Call>
auto uninterrupted(Call&& call) {
  auto result = call();
  while (result == -1 && errno == EINTR) result = call();
  return result;
}

}  // namespace ddprun
