// Ranks as processes (rank_main.cc), killed and stopped from outside at random moments.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>
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
using testing::IsEmpty;
using testing::StartsWith;
using testing_support::ChildProcess;
using testing_support::let_pass;
using testing_support::program;
using testing_support::seed_text;
using testing_support::test_seed;
using testing_support::up_to;

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

// Files: directories there are those of ddprun's runs, other tests' perhaps.
std::vector<std::string> segments_of_ours() {
  std::vector<std::string> entries;
  std::error_code there_is_none;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm", there_is_none)) {
    const std::string name = entry.path().filename();
    if (name.find("ddprun") != std::string::npos && !entry.is_directory(there_is_none)) {
      entries.push_back(name);
    }
  }
  return entries;
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
  let_pass(up_to(std::chrono::milliseconds(15), rng));

  world.at(victim).signal(SIGKILL);
  const TimePoint killed = BootClock::now();

  for (int rank = 0; rank < world.size(); ++rank) {
    if (rank == victim) continue;
    const std::string expected = "end peer lost " + std::to_string(victim) + " ";
    const auto line = world.at(rank).line();
    EXPECT_LT(BootClock::now() - killed, std::chrono::seconds(1));
    ASSERT_TRUE(line) << "rank " << rank << " says nothing";
    EXPECT_THAT(*line, StartsWith(expected)) << "rank " << rank;
    EXPECT_EQ(world.at(rank).line(), "open 0") << "rank " << rank << " leaks descriptors";
  }
  EXPECT_THAT(segments_of_ours(), IsEmpty());
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
  let_pass(up_to(std::chrono::milliseconds(15), rng));

  world.at(victim).signal(SIGSTOP);
  const TimePoint stopped = BootClock::now();

  for (int rank = 0; rank < world.size(); ++rank) {
    if (rank == victim) continue;
    const auto line = world.at(rank).line();
    ASSERT_TRUE(line) << "rank " << rank << " says nothing";
    EXPECT_THAT(*line, StartsWith("end timeout"));
    EXPECT_LT(BootClock::now() - stopped,
              std::chrono::milliseconds(kTimeoutMs) + std::chrono::seconds(1));
    // In a chain of send and recv each rank knows only the one before it.
    if (scenario() == "send_recv") continue;
    EXPECT_THAT(*line, HasSubstr("rank " + std::to_string(victim)));
  }
}

constexpr const char* kScenarios[] = {
    "all_reduce_small",  "all_reduce_large", "all_reduce_list", "reduce",  "broadcast",
    "all_gather",        "reduce_scatter",   "gather",          "scatter", "all_to_all",
    "all_to_all_uneven", "barrier",          "send_recv",       "messages"};

std::string name_of(const testing::TestParamInfo<CpuGroupFaults::ParamType>& test) {
  return std::string(std::get<0>(test.param)) + "_" + std::get<1>(test.param);
}

INSTANTIATE_TEST_SUITE_P(OneNode, CpuGroupFaults,
                         testing::Combine(testing::Values("aa", "aaaa"),
                                          testing::ValuesIn(kScenarios)),
                         name_of);
INSTANTIATE_TEST_SUITE_P(Nodes, CpuGroupFaults,
                         testing::Combine(testing::Values("ab", "aab", "abc"),
                                          testing::ValuesIn(kScenarios)),
                         name_of);

TEST(CpuGroupFaultsWhileForming, NothingIsLeftWhenAllAreKilledAtAnyMoment) {
  const std::uint64_t seed = test_seed(5);
  SCOPED_TRACE(seed_text(seed));
  Rng rng(seed);
  for (int trial = 0; trial < 10; ++trial) {
    ProcessWorld world("aab", "barrier", 30'000);
    let_pass(up_to(std::chrono::milliseconds(12), rng));
    for (int rank = 0; rank < world.size(); ++rank) world.at(rank).signal(SIGKILL);
  }
  EXPECT_THAT(segments_of_ours(), IsEmpty());
}

}  // namespace
}  // namespace ddprun
