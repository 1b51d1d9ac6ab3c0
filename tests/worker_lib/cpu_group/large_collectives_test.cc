// Tests collectives and messages of more than 4 GiB. They need 14 GiB of memory and many
// seconds.
#include <gtest/gtest.h>

#include <fstream>
#include <vector>

#include "base/rng.h"
#include "tests/worker_lib/cpu_group/world.h"

namespace ddprun {
namespace {

constexpr std::size_t kBytes = (std::size_t{4} << 30) + 1'000'003;
constexpr Duration kTimeout = std::chrono::minutes(5);

// Returns MemAvailable of /proc/meminfo, in bytes.
std::size_t available_memory() {
  std::ifstream info("/proc/meminfo");
  std::string key;
  std::size_t kib = 0;
  while (info >> key && key != "MemAvailable:") info.ignore(256, '\n');
  info >> kib;
  return kib << 10;
}

// Returns the byte of a rank at an index. Bytes that are 4 GiB apart differ.
char mark(int rank, std::size_t at) {
  return static_cast<char>(static_cast<std::size_t>(rank + 1) * (1 + at % 11 + (at >> 32)));
}

class LargeCollectives : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    constexpr std::size_t kWanted = std::size_t{14} << 30;
    if (available_memory() < kWanted) {
      GTEST_SKIP() << "14 GiB of free memory are wanted, and there are "
                   << (available_memory() >> 30);
    }
  }

  static std::vector<char> of(int rank, std::size_t begin, std::size_t bytes) {
    std::vector<char> data(bytes);
    for (std::size_t i = 0; i < bytes; ++i) data[i] = mark(rank, begin + i);
    return data;
  }

  // Checks that got[i] is what `expected` returns for begin + i: at both ends, around 4 GiB,
  // and at random indices.
  template <class Expected>
  static void check(std::span<const char> got, std::size_t begin, Expected expected) {
    std::vector<std::size_t> places;
    const auto add = [&](std::size_t first) {
      for (std::size_t at = first; at < std::min(first + 4096, got.size()); ++at)
        places.push_back(at);
    };
    add(0);
    add(got.size() - std::min<std::size_t>(4096, got.size()));
    if (got.size() > (std::size_t{4} << 30)) add((std::size_t{4} << 30) - 2048);
    Rng rng(got.size());
    for (int i = 0; i < 1'000'000; ++i) places.push_back(rng.below(got.size()));
    for (const std::size_t at : places)
      ASSERT_EQ(got[at], expected(begin + at)) << "at " << at << " of " << got.size();
  }

  void run(const std::function<void(CpuGroup&, int)>& body) { EngineWorld(GetParam()).run(body); }
};

char sum_at(std::size_t at) { return static_cast<char>(mark(0, at) + mark(1, at)); }

TEST_P(LargeCollectives, AllReduce) {
  run([](CpuGroup& group, int rank) {
    std::vector<char> data = of(rank, 0, kBytes);
    const auto done =
        group.all_reduce(list_of(writable(data)), ElementType::kU8, ReduceOp::kSum, kTimeout);
    ASSERT_TRUE(done) << done.error().message();
    check(readable(data), 0, sum_at);
  });
}

TEST_P(LargeCollectives, Broadcast) {
  run([](CpuGroup& group, int rank) {
    std::vector<char> data = rank == 1 ? of(1, 0, kBytes) : std::vector<char>(kBytes);
    const auto done = group.broadcast(list_of(writable(data)), Rank(1), kTimeout);
    ASSERT_TRUE(done) << done.error().message();
    check(readable(data), 0, [](std::size_t at) { return mark(1, at); });
  });
}

// The blocks of both ranks together are more than 4 GiB: the second one ends beyond this
// limit.
constexpr std::size_t kBlock = kBytes / 2 + 1;

TEST_P(LargeCollectives, AllGather) {
  run([](CpuGroup& group, int rank) {
    std::vector<char> all(2 * kBlock);
    const WritableBytes whole = writable(all);
    const std::vector<WritableBytes> outputs{whole.first(kBlock), whole.subspan(kBlock)};
    const std::vector<char> mine = of(rank, rank * kBlock, kBlock);
    const auto done = group.all_gather(list_of(readable(mine)), outputs, kTimeout);
    ASSERT_TRUE(done) << done.error().message();
    check(readable(all), 0, [](std::size_t at) { return mark(at >= kBlock, at); });
  });
}

TEST_P(LargeCollectives, ReduceScatter) {
  run([](CpuGroup& group, int rank) {
    const std::vector<char> all = of(rank, 0, 2 * kBlock);
    const ReadableBytes whole = readable(all);
    const std::vector<ReadableBytes> inputs{whole.first(kBlock), whole.subspan(kBlock)};
    std::vector<char> output(kBlock);
    const auto done = group.reduce_scatter(inputs, list_of(writable(output)), ElementType::kU8,
                                           ReduceOp::kSum, kTimeout);
    ASSERT_TRUE(done) << done.error().message();
    check(readable(output), rank * kBlock, sum_at);
  });
}

// Rank 0 sends more than 4 GiB to rank 1, and little comes back.
TEST_P(LargeCollectives, AllToAll) {
  run([](CpuGroup& group, int rank) {
    const auto bytes = [](int from, int to) { return from == 0 && to == 1 ? kBytes : 1001; };
    std::vector<std::vector<char>> sent, got;
    for (int other = 0; other < 2; ++other) {
      sent.push_back(of(rank, 0, bytes(rank, other)));
      got.emplace_back(bytes(other, rank));
    }
    const auto done = group.all_to_all(readable_each(sent), writable_each(got), kTimeout);
    ASSERT_TRUE(done) << done.error().message();
    for (int other = 0; other < 2; ++other)
      check(readable(got[other]), 0, [&](std::size_t at) { return mark(other, at); });
  });
}

TEST_P(LargeCollectives, AMessageArrivesWhole) {
  run([](CpuGroup& group, int rank) {
    if (rank == 0) {
      const std::vector<char> data = of(0, 0, kBytes);
      EXPECT_TRUE(group.send(data.data(), kBytes, Rank(1), 0, kTimeout));
      return;
    }
    std::vector<char> data(kBytes);
    EXPECT_TRUE(group.recv(data.data(), kBytes, Rank(0), 0, kTimeout));
    check(readable(data), 0, [](std::size_t at) { return mark(0, at); });
  });
}

INSTANTIATE_TEST_SUITE_P(Layouts, LargeCollectives, testing::Values("aa", "ab"),
                         [](const auto& layout) { return std::string(layout.param); });

}  // namespace
}  // namespace ddprun
