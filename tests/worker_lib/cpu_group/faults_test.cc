// The fault matrix: every collective in every size on several layouts, with a rank that is
// killed or stopped at a random moment. Ranks are processes (rank_main.cc) that call one
// collective repeatedly and check every result.
//
// By default each collective meets each fault once on each layout, in one size.
// DDPRUN_FAULT_ROUNDS=n runs all sizes, n times. DDPRUN_FAULT_CELL=text runs only the cells
// whose name contains the text, such as "aabb/reduce/chunk/killed".
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <thread>

#include "base/rng.h"
#include "tests/support/child_process.h"
#include "tests/support/program.h"
#include "tests/support/sanitized.h"
#include "tests/support/test_seed.h"
#include "tests/worker_lib/cpu_group/collectives.h"
#include "tests/worker_lib/cpu_group/world.h"

namespace ddprun {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;
using testing_support::ChildProcess;
using testing_support::let_pass;
using testing_support::number_from;
using testing_support::program;
using testing_support::test_seed;
using testing_support::up_to;

// One cpu_test_rank per letter.
class ProcessWorld {
 public:
  ProcessWorld(const std::string& letters, const std::string& collective, std::size_t bytes,
               Duration timeout) {
    for (int rank = 0; rank < static_cast<int>(letters.size()); ++rank) {
      ranks_.push_back(std::make_unique<ChildProcess>(std::vector<std::string>{
          program("cpu_test_rank"), "127.0.0.1:" + std::to_string(store_.port()), letters,
          std::to_string(rank), collective, std::to_string(bytes),
          std::to_string(timeout / milliseconds(1))}));
    }
  }

  bool is_ready() {
    for (auto& rank : ranks_) {
      const auto line = rank->line();
      EXPECT_EQ(line, "ready") << rank->err();
      if (line != "ready") return false;
    }
    return true;
  }

  ChildProcess& at(int rank) { return *ranks_[rank]; }
  int size() const { return static_cast<int>(ranks_.size()); }

 private:
  testing_support::RunningStore store_;
  std::vector<std::unique_ptr<ChildProcess>> ranks_;
};

// Returns files only. Directories with such names belong to runs of ddprun, perhaps of other
// tests.
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

// --- the matrix ---

enum class Fault { kKilled, kStopped };

struct Cell {
  std::string letters;
  std::string collective;
  std::string size;
  Fault fault = Fault::kKilled;

  std::string name() const {
    return letters + "/" + collective + "/" + size + "/" +
           (fault == Fault::kKilled ? "killed" : "stopped");
  }
};

bool has_sizes(const std::string& collective) { return collective != "barrier"; }

// The first layouts run with all sizes, the rest do not.
constexpr const char* kLayouts[] = {"aaa", "aabb", "abc", "aa", "aab"};
constexpr std::size_t kLayoutsOfAllSizes = 3;

std::vector<Cell> one_size_each(Fault fault) {
  std::vector<Cell> cells;
  std::size_t turn = 0;
  for (const char* letters : kLayouts) {
    for (const char* collective : kCollectives) {
      const char* size = has_sizes(collective) ? kSizes[turn++ % std::size(kSizes)] : "tiny";
      cells.push_back({letters, collective, size, fault});
    }
  }
  return cells;
}

std::vector<Cell> all_sizes(Fault fault) {
  std::vector<Cell> cells;
  for (std::size_t i = 0; i < kLayoutsOfAllSizes; ++i) {
    for (const char* collective : kCollectives) {
      for (const char* size : kSizes) {
        cells.push_back({kLayouts[i], collective, size, fault});
        if (!has_sizes(collective)) break;
      }
    }
  }
  return cells;
}

// --- one cell ---

constexpr int kSlowness = testing_support::kSanitized ? 4 : 1;
constexpr Duration kLimit = kSlowness * seconds(1);  // for events that must happen within a second
// Much longer than any call takes, even if many worlds share few cores.
constexpr Duration kDeadline = kSlowness * seconds(2);
constexpr Duration kPatience = kSlowness * seconds(2);  // to ask, report and end after the deadline
constexpr Duration kForever = seconds(30);

using Words = testing::Matcher<const std::string&>;

// Expects that the rank reports this failure of its call, in this period.
void expect_end(ChildProcess& rank, const Words& expected, TimePoint from, TimePoint to) {
  const auto line = rank.line();
  const TimePoint now = BootClock::now();
  ASSERT_TRUE(line) << "it says nothing; exit code " << rank.wait().value_or(-1) << rank.err();
  EXPECT_THAT(*line, expected);
  EXPECT_GE(now, from) << "too early: " << *line;
  EXPECT_LT(now, to) << "too late: " << *line;
}

// Expects that the rank has destroyed its group, and exits without a leak.
void expect_clean_exit(ChildProcess& rank) {
  EXPECT_EQ(rank.line(), "open 0") << "it leaks descriptors";
  EXPECT_EQ(rank.wait(), 0) << rank.err();
}

void play(const Cell& cell, Rng& rng) {
  const bool is_kill = cell.fault == Fault::kKilled;
  ProcessWorld world(cell.letters, cell.collective, bytes_of(cell.size, cell.letters),
                     is_kill ? kForever : kDeadline);
  if (!world.is_ready()) return;
  const int victim = static_cast<int>(rng.below(world.size()));
  let_pass(up_to(milliseconds(20), rng));

  world.at(victim).signal(is_kill ? SIGKILL : SIGSTOP);
  const TimePoint then = BootClock::now();

  for (int rank = 0; rank < world.size(); ++rank) {
    if (rank == victim) continue;
    SCOPED_TRACE("rank " + std::to_string(rank) + ", victim " + std::to_string(victim));
    const std::string whom = std::to_string(victim);
    if (is_kill) {
      expect_end(world.at(rank), StartsWith("end peer lost " + whom + " "), then, then + kLimit);
      continue;
    }
    // If a whole node is stopped, no rank can tell why it is silent.
    const bool is_alone = std::ranges::count(cell.letters, cell.letters[victim]) == 1;
    const Words what = is_alone ? Words(HasSubstr("rank " + whom + " does not answer"))
                                : Words(AllOf(HasSubstr("rank " + whom + " is stopped"),
                                              Not(HasSubstr("does not answer"))));
    expect_end(world.at(rank), AllOf(StartsWith("end timeout " + whom + " "), what), then,
               then + kDeadline + kPatience);
  }
  for (int rank = 0; rank < world.size(); ++rank) {
    if (rank != victim) expect_clean_exit(world.at(rank));
  }
}

// Runs the cells, `at_a_time` of them in parallel, until some have failed.
void play_all(std::vector<Cell> cells, int at_a_time) {
  if (const char* wanted = std::getenv("DDPRUN_FAULT_CELL")) {
    std::erase_if(cells, [&](const Cell& c) { return c.name().find(wanted) == std::string::npos; });
  }
  const std::uint64_t seed = test_seed(1);
  const std::uint64_t rounds = number_from("DDPRUN_FAULT_ROUNDS", 1);
  std::atomic<std::size_t> next = 0;
  std::vector<std::thread> players;
  for (int i = 0; i < at_a_time; ++i) {
    players.emplace_back([&] {
      for (std::size_t turn = next++; turn < rounds * cells.size(); turn = next++) {
        if (testing::Test::HasFailure()) return;
        const Cell& cell = cells[turn % cells.size()];
        const std::uint64_t cell_seed = seed + turn / cells.size();
        SCOPED_TRACE("replay: DDPRUN_FAULT_ROUNDS=1 DDPRUN_FAULT_CELL=" + cell.name() +
                     " DDPRUN_TEST_SEED=" + std::to_string(cell_seed));
        Rng rng(cell_seed + std::hash<std::string>()(cell.name()));
        play(cell, rng);
      }
    });
  }
  for (std::thread& player : players) player.join();
  EXPECT_THAT(segments_of_ours(), IsEmpty());
}

std::vector<Cell> cells_of(Fault fault) {
  return std::getenv("DDPRUN_FAULT_ROUNDS") ? all_sizes(fault) : one_size_each(fault);
}

TEST(CpuGroupFaults, AKilledRankIsNamedByAllOthersWithinASecondAndNothingIsLeft) {
  play_all(cells_of(Fault::kKilled), 2);
}

// Ranks that wait for a deadline need no core meanwhile, so many cells can run in parallel.
TEST(CpuGroupFaults, AStoppedRankIsNamedByAllOthersWhenTimeIsUp) {
  play_all(cells_of(Fault::kStopped), 16);
}

TEST(CpuGroupFaults, NothingIsLeftWhenAllAreKilledAtAnyMomentOfForming) {
  const std::uint64_t seed = test_seed(5);
  SCOPED_TRACE(testing_support::seed_text(seed));
  Rng rng(seed);
  for (int trial = 0; trial < 10; ++trial) {
    ProcessWorld world("aab", "barrier", 0, kForever);
    let_pass(up_to(milliseconds(12), rng));
    for (int rank = 0; rank < world.size(); ++rank) world.at(rank).signal(SIGKILL);
  }
  EXPECT_THAT(segments_of_ours(), IsEmpty());
}

}  // namespace
}  // namespace ddprun
