// FailingFileCalls: the real file calls, of which one fails. fsync does nothing unless it is the
// call that fails.
//
// A test repeats the same story (a sequence of file calls) and lets a later call fail each time.
// It stops when a story ends without reaching the fault.
//
// Any thread may make calls.
#pragma once

#include <cerrno>
#include <mutex>
#include <string>

#include "base/file_calls.h"

namespace ddprun::testing_support {

struct FileFault {
  int call = 0;             // the number of the call that fails, from 0
  int sys_errno = 0;        // the error of the call; 0: a write that writes only half
  bool is_lasting = false;  // all later calls fail too
};

class FailingFileCalls : public FileCalls {
 public:
  explicit FailingFileCalls(const FileFault& fault) : fault_(fault) {}

  // Returns the call that failed, such as "rename /tmp/x". Empty if the story had no such call.
  const std::string& met() const { return met_; }
  void heal() { healed_ = true; }

  int open(const char* path, int flags, mode_t mode) override {
    return fails("open", path) ? -1 : FileCalls::open(path, flags, mode);
  }
  ssize_t write(int fd, const void* data, std::size_t bytes) override {
    bool is_short = false;
    if (fails("write", "", &is_short)) return -1;
    return FileCalls::write(fd, data, is_short ? (bytes + 1) / 2 : bytes);
  }
  int fsync(int) override { return fails("fsync", "") ? -1 : 0; }
  int close(int fd) override {
    const bool failed = fails("close", "");
    const int result = FileCalls::close(fd);  // the descriptor is closed in any case
    if (failed) errno = fault_.sys_errno;
    return failed ? -1 : result;
  }
  int mkdir(const char* path, mode_t mode) override {
    return fails("mkdir", path) ? -1 : FileCalls::mkdir(path, mode);
  }
  int rename(const char* from, const char* to) override {
    return fails("rename", from) ? -1 : FileCalls::rename(from, to);
  }
  int link(const char* from, const char* to) override {
    return fails("link", from) ? -1 : FileCalls::link(from, to);
  }
  int unlink(const char* path) override {
    return fails("unlink", path) ? -1 : FileCalls::unlink(path);
  }

 private:
  // is_half: whether the call is the one that does only half.
  bool fails(const std::string& call, const std::string& path, bool* is_half = nullptr) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const int number = calls_++;
    if (healed_ || number < fault_.call || (number > fault_.call && !fault_.is_lasting))
      return false;
    if (number == fault_.call) met_ = call + " " + path;
    if (is_half) *is_half = fault_.sys_errno == 0 && number == fault_.call;
    errno = fault_.sys_errno;
    return fault_.sys_errno != 0;
  }

  const FileFault fault_;
  std::mutex mutex_;
  int calls_ = 0;
  bool healed_ = false;
  std::string met_;
};

}  // namespace ddprun::testing_support
