#include "base/file_calls.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include "base/unique_fd.h"
#include "base/write_all.h"
#include "tests/support/read_file.h"
#include "tests/support/scoped_file_calls.h"
#include "tests/support/temporary_directory.h"

namespace ddprun {
namespace {

TEST(FileCalls, AreTheRealOnes) {
  const testing_support::TemporaryDirectory here;
  FileCalls& calls = file_calls();
  ASSERT_EQ(calls.mkdir((here / "a").c_str(), 0777), 0);
  const int fd = calls.open((here / "a/draft").c_str(), O_WRONLY | O_CREAT, 0666);
  ASSERT_GE(fd, 0);
  EXPECT_EQ(calls.write(fd, "text", 4), 4);
  EXPECT_EQ(calls.fsync(fd), 0);
  EXPECT_EQ(calls.close(fd), 0);
  EXPECT_EQ(calls.close(fd), -1);
  EXPECT_EQ(errno, EBADF);
  EXPECT_EQ(calls.rename((here / "a/draft").c_str(), (here / "a/file").c_str()), 0);
  EXPECT_EQ(testing_support::read_file(here / "a/file"), "text");
  EXPECT_EQ(calls.unlink((here / "a/file").c_str()), 0);
  EXPECT_TRUE(testing_support::listing(here / "a").empty());
}

TEST(FileCalls, OthersAreInUseUntilTheyEnd) {
  struct Refusing : FileCalls {
    int unlink(const char*) override { return errno = EPERM, -1; }
  } refusing;
  const testing_support::TemporaryDirectory here;
  const std::string path = here.write("file", "x");
  {
    const ScopedFileCalls scope(refusing);
    EXPECT_EQ(file_calls().unlink(path.c_str()), -1);
    EXPECT_EQ(errno, EPERM);
  }
  EXPECT_EQ(file_calls().unlink(path.c_str()), 0);
}

TEST(FileCalls, WhatASignalInterruptsIsDoneAgain) {
  int tries = 0;
  EXPECT_EQ(uninterrupted([&] { return ++tries < 3 ? (errno = EINTR, -1) : 7; }), 7);
  EXPECT_EQ(uninterrupted([&] { return ++tries, errno = EIO, -1; }), -1);
  EXPECT_EQ(tries, 4);
}

TEST(FileCalls, ShortWritesGoOn) {
  std::string written;
  const auto two_at_most = [&](int, const void* data, std::size_t bytes) {
    written.append(static_cast<const char*>(data), std::min<std::size_t>(bytes, 2));
    return static_cast<ssize_t>(std::min<std::size_t>(bytes, 2));
  };
  EXPECT_TRUE(write_all(-1, "12345", two_at_most));
  EXPECT_EQ(written, "12345");
}

}  // namespace
}  // namespace ddprun
