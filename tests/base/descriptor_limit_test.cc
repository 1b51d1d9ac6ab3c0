#include "base/descriptor_limit.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>

#include <fstream>
#include <functional>
#include <string>
#include <thread>

namespace ddprun {
namespace {

// Returns the number of descriptors that the kernel's table of this thread has room for.
std::size_t room() {
  std::ifstream status("/proc/thread-self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("FDSize:")) return std::stoul(line.substr(7));
  }
  return 0;
}

// Runs a test with a table of its own, which is small: the kernel never makes a table smaller.
void with_new_table(const std::function<void()>& test) {
  std::thread([&test] {
    ASSERT_EQ(unshare(CLONE_FILES), 0);
    test();
  }).join();
}

TEST(DescriptorLimit, IsRaisedToTheHardOneAndSaysWhatItWas) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit low = before;
  low.rlim_cur = before.rlim_max - 1;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
  const std::optional<rlimit> was = raise_descriptor_limit();
  ASSERT_TRUE(was.has_value());
  EXPECT_EQ(was->rlim_cur, low.rlim_cur);
  rlimit now{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &now), 0);
  EXPECT_EQ(now.rlim_cur, before.rlim_max);
  EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
}

TEST(DescriptorLimit, RoomIsMadeAtOnceAndLeavesNothingOpen) {
  with_new_table([] {
    const std::size_t before = room();
    const std::size_t wanted = before * 2 + 1;
    rlimit limit{};
    ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
    ASSERT_GT(limit.rlim_cur, wanted);
    make_room_for_descriptors(wanted);
    EXPECT_GE(room(), wanted);
    EXPECT_EQ(fcntl(static_cast<int>(wanted - 1), F_GETFD), -1);
  });
}

TEST(DescriptorLimit, RoomBeyondTheLimitIsNoMatter) {
  with_new_table([] {
    rlimit limit{};
    ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
    rlimit low = limit;
    low.rlim_cur = 4096;
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
    make_room_for_descriptors(1 << 20);
    EXPECT_GE(room(), 4096U);
    EXPECT_LT(room(), std::size_t{1} << 20);
    low.rlim_cur = 0;
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
    make_room_for_descriptors(5000);
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
    EXPECT_LT(room(), std::size_t{1} << 20);
  });
}

}  // namespace
}  // namespace ddprun
