// Tests long all_gathers and all_to_alls by a single copy, also if not all ranks can do it.
#include "worker_lib/cpu_calls/cma_collective.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <limits>

#include "base/pidfd.h"
#include "tests/support/rank_threads.h"
#include "tests/support/running_store.h"
#include "tests/worker_lib/cpu_group/world.h"
#include "worker_lib/cpu_calls/core/pull_trial.h"
#include "worker_lib/cpu_shm/peer_memory.h"

namespace ddprun {
namespace {

constexpr Duration kTimeout = std::chrono::seconds(60);
constexpr std::size_t kNever = std::numeric_limits<std::size_t>::max();

using Bytes = std::vector<char>;

// Returns the data that rank `from` sends to rank `to`.
Bytes piece(int from, int to, std::size_t bytes) {
  Bytes data(bytes);
  for (std::size_t i = 0; i < bytes; ++i) data[i] = static_cast<char>(from * 7 + to * 31 + i % 251);
  return data;
}

void expect_right_results(CpuGroup& group, std::size_t bytes) {
  const int rank = group.rank();
  std::vector<Bytes> inputs, outputs, expected;
  for (int other = 0; other < group.size(); ++other) {
    inputs.push_back(piece(rank, other, bytes));
    outputs.emplace_back(bytes);
    expected.push_back(piece(other, rank, bytes));
  }
  ASSERT_TRUE(group.all_to_all(readable_each(inputs), writable_each(outputs), kTimeout));
  EXPECT_TRUE(outputs == expected) << bytes << " on " << rank;

  // Gathers a list of two tensors. Each rank's data go into one piece and another one.
  const Bytes own = piece(rank, 0, bytes);
  const std::size_t cut = bytes / 3;
  std::vector<Bytes> gathered(group.size(), Bytes(bytes));
  std::vector<WritableBytes> places;
  for (Bytes& one : gathered) {
    places.emplace_back(one.data(), cut);
    places.emplace_back(one.data() + cut, bytes - cut);
  }
  const std::vector<ReadableBytes> list{{own.data(), cut}, {own.data() + cut, bytes - cut}};
  ASSERT_TRUE(group.all_gather(list, places, kTimeout));
  for (int other = 0; other < group.size(); ++other) {
    EXPECT_TRUE(gathered[other] == piece(other, 0, bytes)) << bytes << " on " << rank;
  }
}

constexpr std::size_t kSizes[] = {0, 1, 1000, 70'001, 1'300'000};

class Pull : public testing::TestWithParam<const char*> {};

TEST_P(Pull, OneCopyAndStagedGiveTheSame) {
  for (const std::size_t pull_bytes : {std::size_t{0}, kNever}) {
    EngineWorld world(GetParam(), {.tuning = {.pull_bytes = pull_bytes}});
    world.run([](CpuGroup& group, int) {
      for (const std::size_t bytes : kSizes) expect_right_results(group, bytes);
    });
  }
}

TEST_P(Pull, WhereOneRankCannotAllStage) {
  testing_support::RunningStore store;
  const std::string letters = GetParam();
  testing_support::run_ranks(static_cast<int>(letters.size()), [&](int rank) {
    const auto group = form_rank(store.port(), letters, rank, "world",
                                 {.tuning = {.pull_bytes = rank == 1 ? kNever : 0}});
    for (const std::size_t bytes : kSizes) expect_right_results(*group, bytes);
    EXPECT_TRUE(group->barrier(kTimeout));
  });
}

// Some of these calls are staged, and some pull, as core/pull_trial.h defines.
TEST_P(Pull, TheRanksTryBothWaysTogetherAndSettle) {
  EngineWorld world(GetParam(), {.tuning = {.pull_bytes = 0, .tries_pulling = true}});
  world.run([](CpuGroup& group, int) {
    for (int call = 0; call < PullTrial::kCalls + 6; ++call) {
      for (const std::size_t bytes : {1000, 70'001}) expect_right_results(group, bytes);
    }
  });
}

// Memory that its owner can read and write as usual. No other process can, nor can the kernel.
class SecretMemory {
 public:
  explicit SecretMemory(std::size_t bytes) : bytes_(bytes) {
    const UniqueFd file(static_cast<int>(syscall(SYS_memfd_secret, 0)));
    if (!file.valid() || ftruncate(file.get(), static_cast<off_t>(bytes)) != 0) return;
    void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
    if (memory != MAP_FAILED) memory_ = static_cast<char*>(memory);
  }
  ~SecretMemory() {
    if (memory_) munmap(memory_, bytes_);
  }
  SecretMemory(const SecretMemory&) = delete;
  SecretMemory& operator=(const SecretMemory&) = delete;

  std::span<char> bytes() const { return {memory_, memory_ ? bytes_ : 0}; }

 private:
  std::size_t bytes_;
  char* memory_ = nullptr;
};

TEST_P(Pull, WhereATensorCannotBeReadAllStageAndGoOn) {
  constexpr std::size_t kBytes = 70'000;
  const SecretMemory secret(kBytes);
  if (secret.bytes().empty()) GTEST_SKIP() << "skipped: this kernel has no memfd_secret";
  std::ranges::copy(piece(1, 0, kBytes), secret.bytes().begin());
  EngineWorld world(GetParam(), {.tuning = {.pull_bytes = 0}});
  world.run([&](CpuGroup& group, int rank) {
    expect_right_results(group, 1000);  // this call pulls
    const Bytes mine = piece(rank, 0, kBytes);
    const ReadableBytes input = rank == 1 ? ReadableBytes(secret.bytes()) : readable(mine);
    for (int round = 0; round < 2; ++round) {
      std::vector<Bytes> gathered(group.size(), Bytes(kBytes));
      EXPECT_TRUE(group.all_gather(list_of(input), writable_each(gathered), kTimeout));
      std::vector<Bytes> swapped(group.size(), Bytes(kBytes));
      const std::vector<ReadableBytes> inputs(group.size(), input);
      EXPECT_TRUE(group.all_to_all(inputs, writable_each(swapped), kTimeout));
      for (int other = 0; other < group.size(); ++other) {
        EXPECT_TRUE(gathered[other] == piece(other, 0, kBytes)) << other << " on " << rank;
        EXPECT_TRUE(swapped[other] == gathered[other]) << other << " on " << rank;
      }
    }
    expect_right_results(group, kBytes);
  });
}

INSTANTIATE_TEST_SUITE_P(Layouts, Pull, testing::Values("aa", "aaa", "aaaaa", "aab"),
                         [](const auto& of_test) { return std::string(of_test.param); });

// --- memory of another process

class OtherProcess {
 public:
  OtherProcess() : pid_(fork()) {
    if (pid_ == 0) {
      for (;;) pause();
    }
  }
  ~OtherProcess() { end(); }
  void end() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }
  UniqueFd life() const { return pidfd_of(pid_); }

 private:
  pid_t pid_;
};

TEST(PeerMemory, ReadsWhatAnotherProcessHasInPieces) {
  const std::string text = "what was there when it was forked";
  OtherProcess other;
  std::vector<UniqueFd> lives;
  lives.push_back(other.life());
  const PeerMemory memory(lives);
  ASSERT_TRUE(memory.can_be_read());
  const std::vector<ReadableBytes> from{{text.data() + 5, 3}, {text.data() + 9, 5}};
  Bytes first(6), second(2);
  const std::vector<WritableBytes> to{writable(first), writable(second)};
  ASSERT_TRUE(memory.read(0, Scattered<const char>(std::span<const ReadableBytes>(from)),
                          Scattered<char>(std::span<const WritableBytes>(to))));
  EXPECT_EQ(std::string(first.begin(), first.end()) + std::string(second.begin(), second.end()),
            "wasthere");
}

TEST(PeerMemory, OfManyPiecesAllAreRead) {
  const Bytes text(1000, 'x');
  OtherProcess other;
  std::vector<UniqueFd> lives;
  lives.push_back(other.life());
  const PeerMemory memory(lives);
  std::vector<ReadableBytes> from;
  for (const char& one : text) from.emplace_back(&one, 1);
  Bytes got(1000, 0);
  ASSERT_TRUE(memory.read(0, Scattered<const char>(std::span<const ReadableBytes>(from)),
                          Scattered<char>(writable(got))));
  EXPECT_EQ(got, text);
}

TEST(PeerMemory, ADeadProcessAndAPlaceThatIsNoneAreNotRead) {
  OtherProcess other;
  std::vector<UniqueFd> lives;
  lives.push_back(other.life());
  const PeerMemory memory(lives);
  Bytes got(4);
  const ReadableBytes nowhere(reinterpret_cast<const char*>(4096), 4);
  EXPECT_FALSE(memory.read(0, Scattered<const char>(nowhere), Scattered<char>(writable(got))));
  other.end();
  EXPECT_FALSE(
      memory.read(0, Scattered<const char>(ReadableBytes(got)), Scattered<char>(writable(got))));
  EXPECT_FALSE(PeerMemory(lives).can_be_read());
}

}  // namespace
}  // namespace ddprun
