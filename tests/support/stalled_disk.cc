// A library for LD_PRELOAD that simulates a network file system whose server does not answer.
// File calls on paths below $STALLED_DISK wait while the file $STALLED_WHILE exists.
#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

void wait_for_disk(const char* path) {
  const char* disk = std::getenv("STALLED_DISK");
  const char* condition = std::getenv("STALLED_WHILE");
  if (!disk || !condition || !path || std::strncmp(path, disk, std::strlen(disk)) != 0) return;
  while (access(condition, F_OK) == 0) poll(nullptr, 0, 2);
}

template <class Function>
Function next_of(Function, const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

}  // namespace

#define STALL(function, path, ...)                          \
  wait_for_disk(path);                                      \
  static const auto next = next_of(&(function), #function); \
  return next(__VA_ARGS__)

extern "C" {

int open(const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(rest, mode_t) : 0;
  va_end(rest);
  STALL(open, path, path, flags, mode);
}
int open64(const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(rest, mode_t) : 0;
  va_end(rest);
  STALL(open64, path, path, flags, mode);
}
FILE* fopen(const char* path, const char* mode) { STALL(fopen, path, path, mode); }
FILE* fopen64(const char* path, const char* mode) { STALL(fopen64, path, path, mode); }
int mkdir(const char* path, mode_t mode) noexcept { STALL(mkdir, path, path, mode); }
int rename(const char* from, const char* to) noexcept { STALL(rename, to, from, to); }
int stat(const char* path, struct stat* found) noexcept { STALL(stat, path, path, found); }
int lstat(const char* path, struct stat* found) noexcept { STALL(lstat, path, path, found); }
int unlink(const char* path) noexcept { STALL(unlink, path, path); }

}  // extern "C"
