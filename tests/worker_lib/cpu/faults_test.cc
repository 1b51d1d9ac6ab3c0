// Ranks as processes (rank_main.cc), killed and stopped from outside at random moments.
#include <dirent.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <optional>
#include <tuple>

#include "base/rng.h"
#include "base/unique_fd.h"
#include "tests/worker_lib/cpu/world.h"

namespace ddprun {
namespace {

constexpr Duration kPatience = std::chrono::seconds(20);

// A cpu_test_rank and what it says.
class RankProcess {
 public:
  RankProcess(std::uint16_t port, const std::string& letters, int rank, const std::string& scenario,
              int timeout_ms) {
    int ends[2];
    EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
    output_.reset(ends[0]);
    const UniqueFd theirs(ends[1]);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, theirs.get(), STDOUT_FILENO);
    std::vector<std::string> words{DDPRUN_BIN_DIR "/cpu_test_rank",
                                   std::to_string(port),
                                   letters,
                                   std::to_string(rank),
                                   scenario,
                                   std::to_string(timeout_ms)};
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    EXPECT_EQ(posix_spawn(&pid_, argv[0], &actions, nullptr, argv.data(), environ), 0);
    posix_spawn_file_actions_destroy(&actions);
  }

  ~RankProcess() {
    signal(SIGKILL);
    waitpid(pid_, nullptr, 0);
  }

  void signal(int number) { kill(pid_, number); }

  // The next line; nothing if it ends or the deadline passes before.
  std::optional<std::string> line(TimePoint deadline) {
    for (;;) {
      const std::size_t end = unread_.find('\n');
      if (end != std::string::npos) {
        const std::string result = unread_.substr(0, end);
        unread_.erase(0, end + 1);
        return result;
      }
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - BootClock::now());
      pollfd watched{output_.get(), POLLIN, 0};
      char buffer[4096];
      if (left.count() <= 0 || poll(&watched, 1, static_cast<int>(left.count())) <= 0)
        return std::nullopt;
      const ssize_t got = read(output_.get(), buffer, sizeof buffer);
      if (got <= 0) return std::nullopt;
      unread_.append(buffer, static_cast<std::size_t>(got));
    }
  }

 private:
  pid_t pid_ = -1;
  UniqueFd output_;
  std::string unread_;
};

class ProcessWorld {
 public:
  ProcessWorld(const std::string& letters, const std::string& scenario, int timeout_ms) {
    for (int rank = 0; rank < static_cast<int>(letters.size()); ++rank) {
      ranks_.push_back(
          std::make_unique<RankProcess>(store_.port(), letters, rank, scenario, timeout_ms));
    }
  }

  void wait_until_ready() {
    for (auto& rank : ranks_) ASSERT_EQ(rank->line(BootClock::now() + kPatience), "ready");
  }

  RankProcess& at(int rank) { return *ranks_[rank]; }
  int size() const { return static_cast<int>(ranks_.size()); }

 private:
  TestStore store_;
  std::vector<std::unique_ptr<RankProcess>> ranks_;
};

// Passes time; the moment of a fault is what is random in these tests.
void let_run(Duration duration) {
  poll(nullptr, 0, static_cast<int>(duration / std::chrono::milliseconds(1)));
}

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
  Rng rng(std::hash<std::string>()(letters() + scenario()));
  ProcessWorld world(letters(), scenario(), 30'000);
  world.wait_until_ready();
  ASSERT_FALSE(HasFatalFailure());
  const int victim = static_cast<int>(rng.below(world.size()));
  let_run(std::chrono::milliseconds(rng.below(15)));

  world.at(victim).signal(SIGKILL);
  const TimePoint killed = BootClock::now();

  for (int rank = 0; rank < world.size(); ++rank) {
    if (rank == victim) continue;
    const std::string expected = "end peer lost " + std::to_string(victim) + " ";
    const auto line = world.at(rank).line(killed + kPatience);
    EXPECT_LT(BootClock::now() - killed, std::chrono::seconds(1));
    ASSERT_TRUE(line) << "rank " << rank << " says nothing";
    EXPECT_EQ(starts_with_word(*line, expected), expected) << "rank " << rank << ": " << *line;
    EXPECT_EQ(world.at(rank).line(killed + kPatience), "open 0")
        << "rank " << rank << " leaks descriptors";
  }
  EXPECT_EQ(entries_of_ours_in_dev_shm(), 0);
}

TEST_P(CpuGroupFaults, AStoppedRankIsNamedByAllOthersWhenTimeIsUp) {
  Rng rng(std::hash<std::string>()(letters() + scenario()) + 1);
  constexpr int kTimeoutMs = 400;
  ProcessWorld world(letters(), scenario(), kTimeoutMs);
  world.wait_until_ready();
  ASSERT_FALSE(HasFatalFailure());
  const int victim = static_cast<int>(rng.below(world.size()));
  let_run(std::chrono::milliseconds(rng.below(15)));

  world.at(victim).signal(SIGSTOP);
  const TimePoint stopped = BootClock::now();

  for (int rank = 0; rank < world.size(); ++rank) {
    if (rank == victim) continue;
    const auto line = world.at(rank).line(stopped + kPatience);
    ASSERT_TRUE(line) << "rank " << rank << " says nothing";
    EXPECT_EQ(starts_with_word(*line, "end timeout"), "end timeout") << *line;
    EXPECT_LT(BootClock::now() - stopped,
              std::chrono::milliseconds(kTimeoutMs) + std::chrono::seconds(1));
    // In a chain of send and recv each rank knows only the one before it.
    if (scenario() == "send_recv") continue;
    EXPECT_NE(line->find("rank " + std::to_string(victim)), std::string::npos) << *line;
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
  Rng rng(5);
  for (int trial = 0; trial < 10; ++trial) {
    ProcessWorld world("aab", "barrier", 30'000);
    let_run(std::chrono::milliseconds(rng.below(12)));
    for (int rank = 0; rank < world.size(); ++rank) world.at(rank).signal(SIGKILL);
  }
  EXPECT_EQ(entries_of_ours_in_dev_shm(), 0);
}

}  // namespace
}  // namespace ddprun
