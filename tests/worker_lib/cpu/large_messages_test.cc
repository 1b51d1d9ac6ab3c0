// Messages of more than 4 GiB, which need 9 GiB of memory and many seconds.
#include <gtest/gtest.h>

#include <vector>

#include "tests/worker_lib/cpu/world.h"

namespace ddprun {
namespace {

class LargeMessages : public testing::TestWithParam<const char*> {};

TEST_P(LargeMessages, OfMoreThan4GiBArriveWhole) {
  constexpr std::size_t kBytes = (std::size_t{4} << 30) + 1;
  constexpr std::size_t kStep = 1'000'003;
  constexpr Duration kTimeout = std::chrono::minutes(5);
  EngineWorld world(GetParam());
  world.run([&](CpuGroup& group, int rank) {
    std::vector<char> data(kBytes);
    const auto mark = [](std::size_t at) { return static_cast<char>(1 + at / kStep % 100); };
    if (rank == 0) {
      for (std::size_t at = 0; at < kBytes; at += kStep) data[at] = mark(at);
      data.back() = 'z';
      EXPECT_TRUE(group.send(data.data(), kBytes, Rank(1), 0, kTimeout));
      return;
    }
    EXPECT_TRUE(group.recv(data.data(), kBytes, Rank(0), 0, kTimeout));
    for (std::size_t at = 0; at < kBytes; at += kStep) ASSERT_EQ(data[at], mark(at)) << at;
    EXPECT_EQ(data.back(), 'z');
  });
}

INSTANTIATE_TEST_SUITE_P(Layouts, LargeMessages, testing::Values("aa", "ab"),
                         [](const auto& layout) { return std::string(layout.param); });

}  // namespace
}  // namespace ddprun
