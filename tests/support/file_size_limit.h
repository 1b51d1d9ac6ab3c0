// FileSizeLimit: while it lives, files of this process cannot grow beyond a size. This acts like
// a full disk, but needs no mount and no root. The test program's thread; one object at a time.
#pragma once

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <cstddef>

namespace ddprun::testing_support {

class FileSizeLimit {
 public:
  explicit FileSizeLimit(std::size_t bytes) {
    old_handler_ = std::signal(SIGXFSZ, SIG_IGN);  // then write(2) fails with EFBIG
    EXPECT_EQ(::getrlimit(RLIMIT_FSIZE, &old_), 0);
    rlimit limit = old_;
    limit.rlim_cur = bytes;
    EXPECT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
  }
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &old_);
    std::signal(SIGXFSZ, old_handler_);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

 private:
  rlimit old_ = {};
  void (*old_handler_)(int) = SIG_DFL;
};

}  // namespace ddprun::testing_support
