// HungFile: a file on which a writer blocks, as on a disk that hangs. It is a full FIFO. A text
// that is written to it must fit a pipe.
//
// Any process may write; the test's thread calls everything.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <string>

#include "base/unique_fd.h"

namespace ddprun::testing_support {

class HungFile {
 public:
  explicit HungFile(const std::string& path) {
    EXPECT_EQ(::mkfifo(path.c_str(), 0600), 0) << path;
    pipe_.reset(::open(path.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC));
    const std::array<char, 4096> page{};
    while (::write(pipe_.get(), page.data(), page.size()) > 0) {
    }
  }
  ~HungFile() { release(); }
  HungFile(const HungFile&) = delete;
  HungFile& operator=(const HungFile&) = delete;

  // Lets the blocked writers continue.
  void release() {
    std::array<char, 4096> page;
    while (::read(pipe_.get(), page.data(), page.size()) > 0) {
    }
  }

 private:
  UniqueFd pipe_;
};

}  // namespace ddprun::testing_support
