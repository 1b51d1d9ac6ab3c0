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

}  // namespace
}  // namespace ddprun
