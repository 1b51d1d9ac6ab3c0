#include "worker_lib/worker_reporter.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <memory>
#include <thread>
#include <vector>

#include "base/unique_fd.h"

namespace ddprun {
namespace {

// A file of two pages, as an agent makes it.
class WorkerReporterTest : public testing::Test {
 protected:
  WorkerReporterTest() : file_(memfd_create("pages", MFD_CLOEXEC)) {
    EXPECT_EQ(ftruncate(file_.get(), 2 * kWorkerPageBytes), 0);
    void* at =
        mmap(nullptr, 2 * kWorkerPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file_.get(), 0);
    pages_ = static_cast<WorkerPage*>(at);
    for (int i = 0; i < 2; ++i) {
      pages_[i].magic = kWorkerPageMagic;
      pages_[i].version = kWorkerPageVersion;
    }
    env_.page_file = "/proc/self/fd/" + std::to_string(file_.get());
    env_.page_offset = kWorkerPageBytes;
  }
  ~WorkerReporterTest() override { munmap(pages_, 2 * kWorkerPageBytes); }

  const UniqueFd file_;
  WorkerPage* pages_;
  WorkerEnv env_;
};

TEST_F(WorkerReporterTest, WritesIntoItsOwnPage) {
  const auto reporter = WorkerReporter::open(env_);
  ASSERT_TRUE(reporter->has_page());
  reporter->report_step(7);
  reporter->report_step(8);
  EXPECT_EQ(pages_[1].step, 8);
  EXPECT_EQ(pages_[1].reports, 2u);
  EXPECT_EQ(pages_[0].reports, 0u);
}

TEST_F(WorkerReporterTest, ACallIsInProgressUntilItEnds) {
  const auto reporter = WorkerReporter::open(env_);
  EXPECT_FALSE(oldest_in_progress(pages_[1]));
  const std::uint64_t first = reporter->begin_call(FlightCall::kAllReduce, 1, 4096, -1);
  const std::uint64_t second = reporter->begin_call(FlightCall::kSend, 1, 8, 3);
  ASSERT_TRUE(oldest_in_progress(pages_[1]));
  EXPECT_EQ(oldest_in_progress(pages_[1])->number, first);
  EXPECT_EQ(oldest_in_progress(pages_[1])->bytes, 4096u);
  reporter->end_call(first, false);
  EXPECT_EQ(oldest_in_progress(pages_[1])->number, second);
  EXPECT_EQ(oldest_in_progress(pages_[1])->peer, 3);
  reporter->end_call(second, true);
  EXPECT_FALSE(oldest_in_progress(pages_[1]));
  EXPECT_TRUE(read_record(pages_[1], second)->failed);
  EXPECT_FALSE(read_record(pages_[1], first)->failed);
  EXPECT_EQ(pages_[1].activity, 2u);
}

TEST_F(WorkerReporterTest, TheRingKeepsTheNewestAndAnOldEndTouchesNoNewCall) {
  const auto reporter = WorkerReporter::open(env_);
  const std::uint64_t old = reporter->begin_call(FlightCall::kBarrier, 1, 0, -1);
  for (std::uint64_t i = 0; i < kFlightRecords; ++i) {
    reporter->begin_call(FlightCall::kBarrier, 2 + i, 0, -1);
  }
  EXPECT_FALSE(read_record(pages_[1], old)) << "it was overwritten";
  reporter->end_call(old, false);
  const auto newest = read_record(pages_[1], old + kFlightRecords);
  ASSERT_TRUE(newest);
  EXPECT_EQ(newest->ended_ns, 0u);
  EXPECT_EQ(newest->collective, 1 + kFlightRecords);
}

TEST_F(WorkerReporterTest, CallsOfSeveralThreadsAreAllKept) {
  const auto reporter = WorkerReporter::open(env_);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 200; ++i) {
        reporter->end_call(reporter->begin_call(FlightCall::kRecv, 0, 1, 2), false);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(pages_[1].calls, 800u);
  EXPECT_EQ(pages_[1].activity, 800u);
  EXPECT_FALSE(oldest_in_progress(pages_[1]));
}

TEST_F(WorkerReporterTest, LongWaitsMayLieInEachOther) {
  const auto reporter = WorkerReporter::open(env_);
  reporter->begin_long_wait();
  reporter->begin_long_wait();
  reporter->end_long_wait();
  EXPECT_EQ(pages_[1].patient, 1u);
  reporter->end_long_wait();
  EXPECT_EQ(pages_[1].patient, 0u);
}

TEST_F(WorkerReporterTest, WithoutAPageItReportsToNobody) {
  const auto silent = [](const WorkerEnv& env) {
    const auto reporter = WorkerReporter::open(env);
    reporter->report_step(1);
    reporter->report_activity();
    reporter->end_call(reporter->begin_call(FlightCall::kRecv, 0, 1, 2), false);
    return !reporter->has_page();
  };
  EXPECT_TRUE(silent({}));
  WorkerEnv env = env_;
  env.page_file = "/nowhere";
  EXPECT_TRUE(silent(env));
  env = env_;
  env.page_offset = 2 * kWorkerPageBytes;
  EXPECT_TRUE(silent(env)) << "behind the end";
  env.page_offset = 100;
  EXPECT_TRUE(silent(env)) << "no page begins there";
  pages_[1].version = kWorkerPageVersion + 1;
  EXPECT_TRUE(silent(env_)) << "of another version";
  EXPECT_EQ(pages_[1].reports, 0u);
}

}  // namespace
}  // namespace ddprun
