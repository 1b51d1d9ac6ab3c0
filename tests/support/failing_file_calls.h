// FailingFileCalls: the real file calls, but for fsync, one of which fails. A test tells a story
// again and again and lets another call of it fail each time, until a story ends without having met
// the fault.
//
// One thread at a time, as what is tested has it.
#pragma once

#include <cerrno>
#include <string>

#include "base/file_calls.h"

namespace ddprun::testing_support {

struct FileFault {
  int call = 0;             // which one, counted from 0
  int sys_errno = 0;        // what it fails with; 0: it is a write that writes only half
  bool is_lasting = false;  // so do all after it
};

class FailingFileCalls : public FileCalls {
 public:
  explicit FailingFileCalls(const FileFault& fault) : fault_(fault) {}

  // "rename /tmp/x", empty if the story had no such call.
  const std::string& met() const { return met_; }
  void heal() { healed_ = true; }

  int open(const char* path, int flags, mode_t mode) override {
    return fails("open", path) ? -1 : FileCalls::open(path, flags, mode);
  }
  ssize_t write(int fd, const void* data, std::size_t bytes) override {
    if (fails("write", "") && fault_.sys_errno != 0) return -1;
    const bool is_short = fault_.sys_errno == 0 && calls_ == fault_.call + 1;
    return FileCalls::write(fd, data, is_short ? (bytes + 1) / 2 : bytes);
  }
  int fsync(int) override { return fails("fsync", "") ? -1 : 0; }
  int close(int fd) override {
    const bool failed = fails("close", "");
    const int result = FileCalls::close(fd);  // it is gone in any case
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
  bool fails(const std::string& call, const std::string& path) {
    const int number = calls_++;
    if (healed_ || number < fault_.call || (number > fault_.call && !fault_.is_lasting))
      return false;
    if (number == fault_.call) met_ = call + " " + path;
    errno = fault_.sys_errno;
    return fault_.sys_errno != 0;
  }

  const FileFault fault_;
  int calls_ = 0;
  bool healed_ = false;
  std::string met_;
};

}  // namespace ddprun::testing_support
