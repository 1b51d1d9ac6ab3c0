// Tests how the agent reads pages that workers may have corrupted.
#include "launcher/hang/worker_pages.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <limits>

#include "base/unique_fd.h"
#include "launcher/hang/worker_inspector.h"

namespace ddprun {
namespace {

TEST(WorkerPages, CannotBeMadeSmallerByAWorker) {
  const auto pages = WorkerPages::make(2);
  ASSERT_TRUE(pages);
  const UniqueFd file(open(pages->path().c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_TRUE(file.valid());
  EXPECT_EQ(ftruncate(file.get(), 0), -1);
  EXPECT_EQ(errno, EPERM);
}

// A program that writes out of bounds may write anything into the page.
TEST(WorkerPages, NonsenseIsReadInBoundedTimeAndWithinBounds) {
  const auto pages = WorkerPages::make(1);
  ASSERT_TRUE(pages);
  const UniqueFd file(open(pages->path().c_str(), O_RDWR | O_CLOEXEC));
  void* at = mmap(nullptr, kWorkerPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  ASSERT_NE(at, MAP_FAILED);
  std::memset(at, 0xff, kWorkerPageBytes);
  EXPECT_EQ(pages->step_of(0), -1);
  pages->sample_of(0);
  EXPECT_LE(pages->marks_of(0).size(), kStepMarks);
  const WorkTimes times = pages->times(BootClock::now());
  EXPECT_FALSE(times.first_step) << "it was reported later than now";
  EXPECT_EQ(times.checkpoint, kLongestTimeout);
  auto* page = static_cast<WorkerPage*>(at);
  page->calls = 1;
  page->records[0].number = 1;
  page->records[0].ended_ns = 0;
  const WorkerSnapshot seen = snapshot_of(LocalRank(0), &(*pages)[0], BootClock::now());
  EXPECT_EQ(seen.flight, FlightState::kWaiting);
  EXPECT_EQ(seen.collective, std::numeric_limits<std::int64_t>::max());
  EXPECT_EQ(seen.waited, Duration(0)) << "it began later than now";
  munmap(at, kWorkerPageBytes);
}

TEST(WorkerPages, TheFirstStepOfAnyWorkerAndTheLongestWaitForCheckpointsCount) {
  const auto pages = WorkerPages::make(3);
  ASSERT_TRUE(pages);
  const UniqueFd file(open(pages->path().c_str(), O_RDWR | O_CLOEXEC));
  const auto memory = MappedPages::map({.file = file.get()}, MappedPages::Access::kWrite, 3);
  ASSERT_TRUE(memory);
  const TimePoint now = BootClock::now();
  EXPECT_EQ(pages->times(now), WorkTimes());
  for (int i = 0; i < 2; ++i) {
    WorkerPage& page = (*memory)[static_cast<std::size_t>(i)];
    page.reports = 5;
    page.first_step = 40 + i;
    page.first_step_ns = to_page_time(now - std::chrono::seconds(1 + i));
    page.checkpoint_ns = 1000U - static_cast<unsigned>(i);
  }
  EXPECT_EQ(pages->times(now), (WorkTimes{.first_step = 41,
                                          .since_first = std::chrono::seconds(2),
                                          .checkpoint = Duration(1000)}));
}

}  // namespace
}  // namespace ddprun
