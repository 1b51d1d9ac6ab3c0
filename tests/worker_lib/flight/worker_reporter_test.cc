#include "worker_lib/flight/worker_reporter.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/worker_page_file.h"
#include "tests/support/file_size_limit.h"

namespace ddprun {
namespace {

// Sets up the pages that an agent makes for two workers. The test is the second worker.
class WorkerReporterTest : public testing::Test {
 protected:
  WorkerReporterTest() {
    setenv("DDPRUN_TRACE", "0", 1);  // as in a release build
    env_.page_file = "/proc/self/fd/" + std::to_string(agent_.file.get());
    env_.page_offset = kWorkerPageBytes;
    env_.rank = Rank(5);
    env_.local_rank = LocalRank(1);
  }

  const PageFile agent_ = *make_page_file("pages", 2);
  WorkerPage* const pages_ = &agent_.pages[0];
  WorkerEnv env_;
};

MappedPages page_at(PagePlace place) {
  return MappedPages::map(place, MappedPages::Access::kRead).value();
}

TEST_F(WorkerReporterTest, WritesIntoThePageThatTheAgentHasMadeForIt) {
  const auto reporter = WorkerReporter::open(env_);
  ASSERT_TRUE(reporter->has_page());
  EXPECT_EQ(reporter->place().offset, kWorkerPageBytes);
  reporter->report_step(7);
  reporter->report_step(8);
  EXPECT_EQ(pages_[1].step, 8);
  EXPECT_EQ(pages_[1].reports, 2u);
  EXPECT_EQ(pages_[0].reports, 0u);
  EXPECT_EQ(pages_[1].first_step, 7);
  EXPECT_GT(pages_[1].first_step_ns, 0u);
  EXPECT_LE(pages_[1].first_step_ns, to_page_time(BootClock::now()));
  reporter->report_checkpoint(Duration(20));
  reporter->report_checkpoint(Duration(3));
  EXPECT_EQ(pages_[1].checkpoint_ns, 23u);
  EXPECT_EQ(page_at(reporter->place())[0].step, 8);
}

// Programs in other languages write it there, and agents of earlier versions read the rest.
TEST_F(WorkerReporterTest, TheTotalOfStepsIsWhereItIsDocumentedAndStays) {
  const auto reporter = WorkerReporter::open(env_);
  reporter->report_step(7);
  EXPECT_EQ(pages_[1].total_steps, 0);
  reporter->report_step(8, 1000);
  reporter->report_step(9);
  reporter->report_step(10, -1);
  EXPECT_EQ(pages_[1].total_steps, 1000);
  EXPECT_EQ(pages_[1].step, 10);
  const auto* page = reinterpret_cast<const char*>(&pages_[1]);
  EXPECT_EQ(reinterpret_cast<const char*>(&pages_[1].total_steps) - page, 2152);
  EXPECT_EQ(reinterpret_cast<const char*>(&pages_[1].records) - page, 4096);
}

TEST_F(WorkerReporterTest, KeepsWhenTheLastStepsWereReportedAndHowLongTheWorkerHasWaited) {
  const auto reporter = WorkerReporter::open(env_);
  EXPECT_FALSE(read_mark(pages_[1], 1));
  const std::uint64_t begun = to_page_time(BootClock::now());
  reporter->report_step(7);
  reporter->report_wait(Duration(30));
  { const BlockedTime blocked(reporter.get()); }
  { const BlockedTime nothing(nullptr); }
  reporter->report_step(8);
  const std::optional<StepEntry> first = read_mark(pages_[1], 1);
  const std::optional<StepEntry> second = read_mark(pages_[1], 2);
  ASSERT_TRUE(first && second);
  EXPECT_EQ(first->step, 7);
  EXPECT_EQ(second->step, 8);
  EXPECT_GE(first->ns, begun);
  EXPECT_GE(second->ns, first->ns);
  EXPECT_EQ(first->waited_ns, 0u);
  EXPECT_GT(second->waited_ns, 30u);
  for (std::size_t i = 0; i < kStepMarks; ++i) reporter->report_step(9);
  EXPECT_FALSE(read_mark(pages_[1], 2)) << "it was overwritten";
  EXPECT_TRUE(read_mark(pages_[1], 2 + kStepMarks));
}

TEST_F(WorkerReporterTest, KeepsWhenTheTrainingWaitedForTheLastCheckpoints) {
  const auto reporter = WorkerReporter::open(env_);
  for (const Duration none : {Duration(0), Duration(-1), Duration::min()}) {
    reporter->report_checkpoint(none);
  }
  EXPECT_EQ(pages_[1].checkpoints, 0u);
  EXPECT_FALSE(read_checkpoint(pages_[1], 1));
  const std::uint64_t begun = to_page_time(BootClock::now());
  reporter->report_checkpoint(Duration(30));
  reporter->report_checkpoint(Duration::max());
  const std::optional<CheckpointSpan> first = read_checkpoint(pages_[1], 1);
  const std::optional<CheckpointSpan> second = read_checkpoint(pages_[1], 2);
  ASSERT_TRUE(first && second);
  EXPECT_GE(first->ended_ns, begun);
  EXPECT_EQ(first->ended_ns - first->begun_ns, 30u);
  EXPECT_GE(second->ended_ns, first->ended_ns);
  EXPECT_LE(second->ended_ns, to_page_time(BootClock::now()));
  EXPECT_EQ(second->begun_ns, 0u) << "not before the host was booted";
  for (std::size_t i = 0; i < kCheckpointMarks - 1; ++i) reporter->report_checkpoint(Duration(1));
  EXPECT_FALSE(read_checkpoint(pages_[1], 1)) << "it was overwritten";
  EXPECT_EQ(read_checkpoint(pages_[1], 2), second);
  EXPECT_TRUE(read_checkpoint(pages_[1], 1 + kCheckpointMarks));
  // Where programs in other languages write them: docs/how-to/hangs.md.
  const auto word_at = [&](std::size_t offset) {
    std::uint64_t word = 0;
    std::memcpy(&word, reinterpret_cast<const char*>(&pages_[1]) + offset, sizeof word);
    return word;
  };
  EXPECT_EQ(word_at(2184), 1 + kCheckpointMarks);
  EXPECT_EQ(word_at(2192), 1 + kCheckpointMarks);
  EXPECT_EQ(word_at(2216), 2u);
  EXPECT_EQ(word_at(2232), second->ended_ns);
}

TEST_F(WorkerReporterTest, OnlyTheTimeOfABlockingCallIsAWait) {
  const auto reporter = WorkerReporter::open(env_);
  reporter->end_call(reporter->begin_call({}), /*failed=*/false);
  EXPECT_EQ(pages_[1].waited_ns, 0u);
  reporter->end_call(reporter->begin_call({}), /*failed=*/false, /*was_blocked=*/true);
  const std::optional<FlightEntry> call = read_record(pages_[1], 2);
  ASSERT_TRUE(call);
  EXPECT_EQ(pages_[1].waited_ns, call->ended_ns - call->begun_ns);
  EXPECT_GT(pages_[1].waited_ns, 0u);
}

TEST_F(WorkerReporterTest, SaysThatTheProgramHasReachedItsEnd) {
  const auto reporter = WorkerReporter::open(env_);
  EXPECT_EQ(pages_[1].finished, 0u);
  reporter->report_finished(true);
  EXPECT_EQ(pages_[1].finished, 1u);
  reporter->report_finished(false);
  EXPECT_EQ(pages_[1].finished, 0u) << "another Context";
}

TEST_F(WorkerReporterTest, TheEndOfACallThatWasNotRecordedIsNoActivity) {
  const auto reporter = WorkerReporter::open(env_);
  reporter->end_call(0, false);
  EXPECT_EQ(pages_[1].activity, 0u);
}

TEST_F(WorkerReporterTest, ACallIsInProgressUntilItEnds) {
  const auto reporter = WorkerReporter::open(env_);
  EXPECT_FALSE(oldest_in_progress(pages_[1]));
  const std::uint64_t first = reporter->begin_call(
      {.collective = 1, .bytes = 4096, .peer = -1, .call = FlightCall::kAllReduce});
  const std::uint64_t second =
      reporter->begin_call({.collective = 1, .bytes = 8, .peer = 3, .call = FlightCall::kSend});
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

TEST_F(WorkerReporterTest, ACallIsRecordedWithAllThatWasSaidOfIt) {
  const auto reporter = WorkerReporter::open(env_);
  const std::uint64_t number = reporter->begin_call({.collective = 3,
                                                     .bytes = 8,
                                                     .group = 7,
                                                     .peer = 2,
                                                     .call = FlightCall::kAllToAll,
                                                     .dtype = FlightType::kBfloat16,
                                                     .op = FlightOp::kMax,
                                                     .tag = -5});
  const auto entry = read_record(pages_[1], number);
  ASSERT_TRUE(entry);
  EXPECT_EQ(entry->call, FlightCall::kAllToAll);
  EXPECT_EQ(entry->group, 7u);
  EXPECT_EQ(entry->collective, 3u);
  EXPECT_EQ(entry->bytes, 8u);
  EXPECT_EQ(entry->dtype, FlightType::kBfloat16);
  EXPECT_EQ(entry->op, FlightOp::kMax);
  EXPECT_EQ(entry->peer, 2);
  EXPECT_EQ(entry->tag, -5);
  EXPECT_EQ(entry->origin, 0u) << "nobody has asked for it";
}

TEST_F(WorkerReporterTest, AGroupIsWrittenOnceWithAsMuchAsThereIsRoomFor) {
  const auto reporter = WorkerReporter::open(env_);
  reporter->register_group(7, "tp0", std::vector{0, 2});
  reporter->register_group(7, "another", std::vector{1});
  std::vector<int> many(1000);
  std::iota(many.begin(), many.end(), 5);
  reporter->register_group(8, std::string(100, 'x'), many);
  ASSERT_EQ(pages_[1].group_count, 2u);
  const FlightGroup& first = pages_[1].groups[0];
  EXPECT_EQ(first.id, 7u);
  EXPECT_EQ(text_in(first.name), "tp0");
  EXPECT_EQ(first.size, 2u);
  EXPECT_EQ(first.listed, 2u);
  EXPECT_EQ(first.ranks[1], 2u);
  const FlightGroup& second = pages_[1].groups[1];
  EXPECT_EQ(text_in(second.name), std::string(kFlightGroupNameBytes, 'x'));
  EXPECT_EQ(second.size, 1000u);
  EXPECT_EQ(second.listed, kFlightGroupRanks);
  EXPECT_EQ(second.ranks.back(), 4 + kFlightGroupRanks);
  EXPECT_EQ(second.digest, flight_digest(many));
  EXPECT_NE(second.digest, flight_digest(std::span(many).first(999)));
  for (std::uint64_t id = 100; id < 100 + 2 * kFlightGroups; ++id) {
    reporter->register_group(id, "", {});
  }
  EXPECT_EQ(pages_[1].group_count, kFlightGroups);
}

TEST_F(WorkerReporterTest, FromWhereCallsComeIsRecordedOnceForEachPlace) {
  setenv("DDPRUN_TRACE", "1", 1);
  const auto reporter = WorkerReporter::open(env_);
  setenv("DDPRUN_TRACE", "0", 1);
  std::vector<std::uint32_t> origins;
  for (int i = 0; i < 3; ++i) {
    const std::uint64_t number = reporter->begin_call({.call = FlightCall::kBarrier});
    origins.push_back(read_record(pages_[1], number)->origin);
  }
  const std::uint64_t other = reporter->begin_call({.call = FlightCall::kBarrier});
  EXPECT_EQ(origins, (std::vector<std::uint32_t>{1, 1, 1})) << "one place";
  EXPECT_EQ(read_record(pages_[1], other)->origin, 2u);
  EXPECT_EQ(pages_[1].origin_count, 2u);
  const std::string text = text_in(pages_[1].origins[0]);
  EXPECT_NE(text.find(" < "), std::string::npos) << text;
  EXPECT_EQ(text.find("__libc_start_main"), std::string::npos) << text;
  EXPECT_EQ(text.find("libc.so"), std::string::npos) << text;
  EXPECT_NE(text, text_in(pages_[1].origins[1]));
  const auto silent = WorkerReporter::open(env_);
  silent->begin_call({.call = FlightCall::kBarrier});
  EXPECT_EQ(pages_[1].origin_count, 2u);
}

TEST_F(WorkerReporterTest, PlacesBeyondTheRoomForThemAreUnknown) {
  WorkerPage& page = pages_[1];
  CallOrigins origins;
  CallStack stack(1);
  for (std::size_t i = 0; i < kFlightOrigins + 10; ++i) {
    stack[0] = reinterpret_cast<void*>(i + 1);
    EXPECT_EQ(origins.number_of(stack, page), i < kFlightOrigins ? i + 1 : 0);
  }
  stack[0] = reinterpret_cast<void*>(5);
  EXPECT_EQ(origins.number_of(stack, page), 5u) << "it is known already";
}

TEST_F(WorkerReporterTest, TheRingKeepsTheNewestAndAnOldEndTouchesNoNewCall) {
  const auto reporter = WorkerReporter::open(env_);
  const std::uint64_t old =
      reporter->begin_call({.collective = 1, .bytes = 0, .peer = -1, .call = FlightCall::kBarrier});
  for (std::uint64_t i = 0; i < kFlightRecords; ++i) {
    reporter->begin_call(
        {.collective = 2 + i, .bytes = 0, .peer = -1, .call = FlightCall::kBarrier});
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
        reporter->end_call(reporter->begin_call(
                               {.collective = 0, .bytes = 1, .peer = 2, .call = FlightCall::kRecv}),
                           false);
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

// Expects that the worker reports into its own page, and that the page names the worker.
void expect_own_page(const WorkerEnv& env, const char* why) {
  const auto reporter = WorkerReporter::open(env);
  ASSERT_TRUE(reporter->has_page()) << why;
  reporter->report_step(7);
  const MappedPages own = page_at(reporter->place());
  EXPECT_EQ(own[0].step, 7) << why;
  EXPECT_EQ(own[0].rank, 5u);
  EXPECT_EQ(own[0].local_rank, 1u);
}

TEST_F(WorkerReporterTest, WhereItIsGivenNoPageItMakesOneForItself) {
  WorkerEnv env = env_;
  env.page_file = "";
  expect_own_page(env, "nobody has said where one is");
  env.page_file = "/nowhere";
  expect_own_page(env, "it is not seen from here");
  env = env_;
  env.page_offset = 2 * kWorkerPageBytes;
  expect_own_page(env, "behind the end");
  pages_[1].version = kWorkerPageVersion + 1;
  expect_own_page(env_, "of another version");
  EXPECT_EQ(pages_[1].reports, 0u);
}

TEST_F(WorkerReporterTest, EachThatMakesAPageHasItsOwn) {
  const auto first = WorkerReporter::open({});
  const auto second = WorkerReporter::open({});
  first->report_step(1);
  second->report_step(2);
  EXPECT_EQ(page_at(first->place())[0].step, 1);
  EXPECT_EQ(page_at(second->place())[0].step, 2);
}

void expect_to_report_to_nobody(WorkerReporter& reporter) {
  EXPECT_FALSE(reporter.has_page());
  reporter.report_step(1);
  reporter.report_activity();
  reporter.begin_long_wait();
  reporter.end_long_wait();
  reporter.register_group(7, "tp0", std::vector{0, 2});
  const std::uint64_t number = reporter.begin_call({.bytes = 1, .call = FlightCall::kRecv});
  EXPECT_EQ(number, 0u);
  reporter.end_call(number, false);
}

TEST_F(WorkerReporterTest, WhereNoPageCanBeMadeItReportsToNobody) {
  {
    const testing_support::FileSizeLimit small(kWorkerPageBytes - 1);
    const auto reporter = WorkerReporter::open({});
    expect_to_report_to_nobody(*reporter);
    EXPECT_EQ(reporter->place().file, -1);
  }
  WorkerReporter nobody;
  expect_to_report_to_nobody(nobody);
}

TEST_F(WorkerReporterTest, TheChildOfAForkReportsIntoNoPageButOneThatItOpens) {
  const auto reporter = WorkerReporter::open({});
  reporter->report_step(1);
  const pid_t child = fork();
  const auto report_in_the_child = [&]() noexcept {
    expect_to_report_to_nobody(*reporter);
    const auto own = WorkerReporter::open({});
    own->report_step(2);
    EXPECT_EQ(page_at(own->place())[0].step, 2);
    _exit(HasFailure() ? 1 : 0);
  };
  if (child == 0) report_in_the_child();
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0) << "the child has said why";
  reporter->report_step(3);
  const MappedPages page = page_at(reporter->place());
  EXPECT_EQ(page[0].reports, 2u);
  EXPECT_EQ(page[0].step, 3);
  EXPECT_EQ(page[0].calls, 0u);
}

}  // namespace
}  // namespace ddprun
