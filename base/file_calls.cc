#include "base/file_calls.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>

namespace ddprun {
namespace {

std::atomic<FileCalls*> calls_in_use = nullptr;  // nullptr: the real ones

}  // namespace

int FileCalls::open(const char* path, int flags, mode_t mode) { return ::open(path, flags, mode); }
ssize_t FileCalls::write(int fd, const void* data, std::size_t bytes) {
  return ::write(fd, data, bytes);
}
int FileCalls::fsync(int fd) { return ::fsync(fd); }
int FileCalls::close(int fd) { return ::close(fd); }
int FileCalls::mkdir(const char* path, mode_t mode) { return ::mkdir(path, mode); }
int FileCalls::rename(const char* from, const char* to) { return std::rename(from, to); }
int FileCalls::link(const char* from, const char* to) { return ::link(from, to); }
int FileCalls::unlink(const char* path) { return ::unlink(path); }

FileCalls& file_calls() {
  static FileCalls real;
  FileCalls* others = calls_in_use.load(std::memory_order_acquire);
  return others ? *others : real;
}

FileCalls* replace_file_calls(FileCalls* calls) {
  return calls_in_use.exchange(calls, std::memory_order_acq_rel);
}

}  // namespace ddprun
