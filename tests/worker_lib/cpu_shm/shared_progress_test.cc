#include "worker_lib/cpu_shm/shared_progress.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "base/process_stat.h"
#include "tests/support/eventually.h"

namespace ddprun {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing_support::in;
using testing_support::kPatience;

// The shared progress of all ranks of a node, in one block of memory.
class Boards {
 public:
  explicit Boards(int ranks, Duration spin = Duration::zero()) {
    bytes_ = (SharedProgress::bytes_for(ranks, ranks) + 4095) / 4096 * 4096;
    memory_.reset(std::aligned_alloc(4096, bytes_));
    std::memset(memory_.get(), 0, bytes_);
    for (int local = 0; local < ranks; ++local)
      boards_.emplace_back(memory_.get(), ranks, local, spin);
  }
  SharedProgress& operator[](int local) { return boards_[local]; }
  void* memory() { return memory_.get(); }
  std::size_t bytes() const { return bytes_; }

 private:
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  std::unique_ptr<void, Free> memory_;
  std::size_t bytes_ = 0;
  std::vector<SharedProgress> boards_;
};

// Lets all ranks step together. A lost wake-up would let a rank sleep until its deadline.
void march(int ranks, std::uint64_t steps, Duration spin) {
  Boards boards(ranks, spin);
  std::vector<std::thread> threads;
  for (int local = 0; local < ranks; ++local) {
    threads.emplace_back([&, local] {
      for (std::uint64_t tick = 1; tick <= steps; ++tick) {
        boards[local].publish(tick);
        ASSERT_EQ(boards[local].wait_for_all(tick, in(kPatience)), WaitEnd::kReady)
            << "at " << tick;
        for (int other = 0; other < ranks; ++other) ASSERT_GE(boards[local].tick(other), tick);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(SharedProgress, RanksThatSleepAtOnceNeverMissEachOther) { march(6, 2000, Duration::zero()); }

TEST(SharedProgress, RanksThatSpinNeverMissEachOther) {
  march(2, 20'000, std::chrono::microseconds(20));
}

TEST(SharedProgress, WaitsForOneRankOnly) {
  Boards boards(3);
  boards[1].publish(5);
  EXPECT_EQ(boards[0].wait_for(1, 5, in(seconds(5))), WaitEnd::kReady);
  EXPECT_EQ(boards[0].wait_for(2, 1, in(milliseconds(5))), WaitEnd::kTimedOut);
  EXPECT_EQ(boards[0].wait_for_all(1, in(milliseconds(5))), WaitEnd::kTimedOut);
}

TEST(SharedProgress, ASleeperIsWokenByTheRankItWaitsFor) {
  Boards boards(2);
  std::thread sleeper([&] { EXPECT_EQ(boards[0].wait_for(1, 7, in(kPatience)), WaitEnd::kReady); });
  boards[1].publish(6);
  boards[1].publish(7);
  sleeper.join();
}

// Finds the tick of a rank in the memory: it is the place of the value that the rank
// publishes.
std::atomic<std::uint64_t>& place_of_tick(Boards& boards, int local) {
  constexpr std::uint64_t kMark = 0x5EED'0000'0000'0001;
  boards[local].publish(kMark);
  auto* const words = reinterpret_cast<std::uint64_t*>(boards.memory());
  std::uint64_t* const end = words + boards.bytes() / sizeof(std::uint64_t);
  std::uint64_t* const place = std::find(words, end, kMark);
  EXPECT_NE(place, end);
  return *reinterpret_cast<std::atomic<std::uint64_t>*>(place);
}

// A rank that was killed, or stopped, after it stored its tick and before it woke the waiting
// rank.
class OwedWakeUp {
 public:
  OwedWakeUp() : tick_(place_of_tick(boards_, 1)), wanted_(tick_.load() + 1) {
    waiter_ = std::thread([this] {
      thread_ = gettid();
      EXPECT_EQ(boards_[0].wait_for(1, wanted_, in(kPatience)), WaitEnd::kReady);
    });
    EXPECT_TRUE(testing_support::eventually([&] {
      const std::optional<ProcessStat> stat = process_stat(thread_);
      return stat && stat->state == 'S';
    })) << "it does not sleep";
    tick_.store(wanted_);
  }
  ~OwedWakeUp() {
    if (waiter_.joinable()) waiter_.join();
  }
  SharedProgress& progress() { return boards_[0]; }
  void join() { waiter_.join(); }

 private:
  Boards boards_{2};
  std::atomic<std::uint64_t>& tick_;
  std::uint64_t wanted_;
  std::atomic<pid_t> thread_ = 0;
  std::thread waiter_;
};

TEST(SharedProgress, AWakeUpThatADeadRankOwedIsMadeUpFor) {
  OwedWakeUp owed;
  owed.progress().notify_own();
  owed.join();
}

TEST(SharedProgress, AWakeUpThatAStoppedRankOwesIsMissedForAMomentOnly) {
  const TimePoint start = BootClock::now();
  OwedWakeUp owed;
  owed.join();
  EXPECT_LT(BootClock::now() - start, kPatience / 2) << "it has slept until its deadline";
}

TEST(SharedProgress, AFailureWakesAllRanksAndTheFirstIsKept) {
  Boards boards(3);
  std::vector<std::thread> sleepers;
  for (const int local : {0, 2}) {
    sleepers.emplace_back(
        [&, local] { EXPECT_EQ(boards[local].wait_for_all(1, in(kPatience)), WaitEnd::kFailed); });
  }
  EXPECT_TRUE(boards[1].raise(
      {.kind = ErrorKind::kPeerLost, .peer_rank = 17, .reporter = 4, .cause = "rank 17 died"}));
  for (std::thread& sleeper : sleepers) sleeper.join();
  EXPECT_FALSE(boards[2].raise(
      {.kind = ErrorKind::kTimeout, .peer_rank = 1, .reporter = 5, .cause = "late"}));
  for (int local = 0; local < 3; ++local) {
    const std::optional<GroupFailure> failure = boards[local].failure();
    ASSERT_TRUE(failure);
    EXPECT_EQ(failure->kind, ErrorKind::kPeerLost);
    EXPECT_EQ(failure->peer_rank, 17);
    EXPECT_EQ(failure->reporter, 4);
    EXPECT_EQ(failure->cause, "rank 17 died");
  }
}

TEST(SharedProgress, AFailureWithoutACulpritAndWithALongCauseIsKept) {
  Boards boards(1);
  boards[0].raise(
      {.kind = ErrorKind::kInvalidArgument, .reporter = 0, .cause = std::string(5000, 'x')});
  const std::optional<GroupFailure> failure = boards[0].failure();
  EXPECT_EQ(failure->peer_rank, -1);
  EXPECT_EQ(failure->cause, std::string(GroupFailure::kMaxCauseBytes, 'x'));
}

TEST(SharedProgress, WhatIsThereCountsEvenWhenItsMakerHasFailedOrLeft) {
  Boards boards(2);
  boards[0].publish(3);
  boards[1].publish(3);
  boards[1].leave();
  EXPECT_EQ(boards[0].wait_for_all(3, in(seconds(5))), WaitEnd::kReady);
  EXPECT_EQ(boards[0].wait_for_all(4, in(seconds(5))), WaitEnd::kLeft);
  boards[1].raise(
      {.kind = ErrorKind::kPeerLost, .peer_rank = 1, .reporter = 0, .cause = "rank 1 died"});
  EXPECT_EQ(boards[0].wait_for_all(3, in(seconds(5))), WaitEnd::kReady);
  EXPECT_EQ(boards[0].wait_for_all(4, in(seconds(5))), WaitEnd::kFailed);
}

TEST(SharedProgress, LeavingWakesWhoWaitsForTheLeaver) {
  Boards boards(2);
  std::thread sleeper([&] { EXPECT_EQ(boards[0].wait_for_all(1, in(kPatience)), WaitEnd::kLeft); });
  boards[1].leave();
  sleeper.join();
}

TEST(SharedProgress, ShowsTheCallARankIsIn) {
  Boards boards(2);
  const CallHeader call{.sequence = 9, .count = 3, .kind = CallKind::kGather};
  boards[1].enter(call, 11);
  EXPECT_EQ(boards[0].call_of(1, 11), call);
  EXPECT_EQ(boards[0].entered(1), 11u);
  EXPECT_EQ(boards[0].entered(0), 0u);
}

TEST(SharedProgress, ANoteIsReadWholeWhileItIsWritten) {
  Boards boards(2);
  EXPECT_EQ(boards[0].note_of(1), "");
  std::atomic<bool> done = false;
  std::thread writer([&] {
    for (int i = 0; !done; ++i) {
      boards[1].write_note(std::string(static_cast<std::size_t>(1 + i % 1024),
                                       static_cast<char>('a' + i % 1024 % 26)));
    }
  });
  int whole = 0;
  const TimePoint end = in(10 * kPatience);
  while (whole < 2000 && BootClock::now() < end) {
    const std::string note = boards[0].note_of(1);
    if (note.empty()) continue;  // the note changed during each try
    ++whole;
    ASSERT_EQ(note, std::string(note.size(), static_cast<char>('a' + (note.size() - 1) % 26)));
  }
  done = true;
  writer.join();
  EXPECT_EQ(whole, 2000);
}

}  // namespace
}  // namespace ddprun
