// Ranks as processes (rank_main.cc), killed and stopped from outside at random moments.
#include <dirent.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <optional>
#include <tuple>

#include "base/rng.h"
#include "tests/support/child_process.h"
#include "tests/support/program.h"
#include "tests/support/test_seed.h"
#include "tests/worker_lib/cpu/world.h"

namespace ddprun {
namespace {

using testing::HasSubstr;
using testing_support::ChildProcess;
using testing_support::let_pass;
using testing_support::program;
using testing_support::seed_text;
using testing_support::test_seed;

// One cpu_test_rank per letter.
class ProcessWorld {
 public:
  ProcessWorld(const std::string& letters, const std::string& scenario, int timeout_ms) {
    for (int rank = 0; rank < static_cast<int>(letters.size()); ++rank) {
      ranks_.push_back(std::make_unique<ChildProcess>(
          std::vector<std::string>{program("cpu_test_rank"), std::to_string(store_.port()), letters,
                                   std::to_string(rank), scenario, std::to_string(timeout_ms)}));
    }
  }

  void wait_until_ready() {
    for (auto& rank : ranks_) ASSERT_EQ(rank->line(), "ready");
  }

  ChildProcess& at(int rank) { return *ranks_[rank]; }
  int size() const { return static_cast<int>(ranks_.size()); }

 private:
  testing_support::RunningStore store_;
  std::vector<std::unique_ptr<ChildProcess>> ranks_;
};

std::string starts_with_word(const std::string& text, const std::string& start) {
  return text.substr(0, start.size());
}

int entries_of_ours_in_dev_shm() {
  int count = 0;
  DIR* const directory = opendir("/dev/shm");
  if (!directory) return 0;
  while (const dirent* entry = readdir(directory)) {
    if (std::string(entry->d_name).find("ddprun") != std::string::npos) ++count;
  }
  closedir(directory);
  return count;
}

class CpuGroupFaults : public testing::TestWithParam<std::tuple<const char*, const char*>> {
 protected:
  std::string letters() const { return std::get<0>(GetParam()); }
  std::string scenario() const { return std::get<1>(GetParam()); }
};

TEST_P(CpuGroupFaults, AKilledRankIsNamedByAllOthersWithinASecondAndNothingIsLeft) {
  const std::uint64_t seed = test_seed(std::hash<std::string>()(letters() + scenario()));
  SCOPED_TRACE(seed_text(seed));
  Rng rng(seed);
  ProcessWorld world(letters(), scenario(), 30'000);
  world.wait_until_ready();
  ASSERT_FALSE(HasFatalFailure());
  const int victim = static_cast<int>(rng.below(world.size()));
  let_pass(std::chrono::milliseconds(rng.below(15)));

  world.at(victim).signal(SIGKILL);
  const TimePoint killed = BootClock::now();

  for (int rank = 0; rank < world.size(); ++rank) {
    if (rank == victim) continue;
    const std::string expected = "end peer lost " + std::to_string(victim) + " ";
    const auto line = world.at(rank).line();
    EXPECT_LT(BootClock::now() - killed, std::chrono::seconds(1));
    ASSERT_TRUE(line) << "rank " << rank << " says nothing";
    EXPECT_EQ(starts_with_word(*line, expected), expected) << "rank " << rank << ": " << *line;
    EXPECT_EQ(world.at(rank).line(), "open 0") << "rank " << rank << " leaks descriptors";
  }
  EXPECT_EQ(entries_of_ours_in_dev_shm(), 0);
}

TEST_P(CpuGroupFaults, AStoppedRankIsNamedByAllOthersWhenTimeIsUp) {
  const std::uint64_t seed = test_seed(std::hash<std::string>()(letters() + scenario()) + 1);
  SCOPED_TRACE(seed_text(seed));
  Rng rng(seed);
  constexpr int kTimeoutMs = 1000;
  ProcessWorld world(letters(), scenario(), kTimeoutMs);
  world.wait_until_ready();
  ASSERT_FALSE(HasFatalFailure());
  const int victim = static_cast<int>(rng.below(world.size()));
  let_pass(std::chrono::milliseconds(rng.below(15)));

  world.at(victim).signal(SIGSTOP);
  const TimePoint stopped = BootClock::now();

  for (int rank = 0; rank < world.size(); ++rank) {
    if (rank == victim) continue;
    const auto line = world.at(rank).line();
    ASSERT_TRUE(line) << "rank " << rank << " says nothing";
    EXPECT_EQ(starts_with_word(*line, "end timeout"), "end timeout") << *line;
    EXPECT_LT(BootClock::now() - stopped,
              std::chrono::milliseconds(kTimeoutMs) + std::chrono::seconds(1));
    // In a chain of send and recv each rank knows only the one before it.
    if (scenario() == "send_recv") continue;
    EXPECT_THAT(*line, HasSubstr("rank " + std::to_string(victim)));
  }
}

INSTANTIATE_TEST_SUITE_P(OneNode, CpuGroupFaults,
                         testing::Combine(testing::Values("aa", "aaaa"),
                                          testing::Values("all_reduce_small", "all_reduce_large",
                                                          "reduce", "broadcast", "all_gather",
                                                          "reduce_scatter", "gather", "scatter",
                                                          "barrier", "send_recv")),
                         [](const auto& test) {
                           return std::string(std::get<0>(test.param)) + "_" +
                                  std::get<1>(test.param);
                         });
INSTANTIATE_TEST_SUITE_P(Nodes, CpuGroupFaults,
                         testing::Combine(testing::Values("ab", "aab", "abc"),
                                          testing::Values("all_reduce_small", "all_reduce_large",
                                                          "reduce", "broadcast", "all_gather",
                                                          "reduce_scatter", "gather", "scatter",
                                                          "barrier", "send_recv")),
                         [](const auto& test) {
                           return std::string(std::get<0>(test.param)) + "_" +
                                  std::get<1>(test.param);
                         });

TEST(CpuGroupFaultsWhileForming, NothingIsLeftWhenAllAreKilledAtAnyMoment) {
  const std::uint64_t seed = test_seed(5);
  SCOPED_TRACE(seed_text(seed));
  Rng rng(seed);
  for (int trial = 0; trial < 10; ++trial) {
    ProcessWorld world("aab", "barrier", 30'000);
    let_pass(std::chrono::milliseconds(rng.below(12)));
    for (int rank = 0; rank < world.size(); ++rank) world.at(rank).signal(SIGKILL);
  }
  EXPECT_EQ(entries_of_ours_in_dev_shm(), 0);
}

}  // namespace
}  // namespace ddprun
