#include "launcher/agent/rank_table.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <memory>

#include "base/process_stat.h"
#include "base/step_shares.h"

namespace ddprun {
namespace {

using namespace std::chrono_literals;

class RankTableTest : public testing::Test {
 protected:
  // The page as a worker would write it, without its magic.
  WorkerPage& page() { return *page_; }

  void report(std::int64_t step, TimePoint when) {
    if (page().reports++ == 0) {
      page().first_step = step;
      page().first_step_ns = to_page_time(when);
    }
    page().step = step;
  }
  void begin_call(FlightCall call, std::uint64_t collective, TimePoint when) {
    const std::uint64_t number = page().calls + 1;
    FlightRecord& record = page().record_of(number);
    record.call = call;
    record.collective = collective;
    record.begun_ns = to_page_time(when);
    record.ended_ns = 0;
    record.number = number;
    page().calls = number;
  }

  RankTable::Source source(bool lives = true) {
    return {.worker = {.rank = Rank(5),
                       .local_rank = LocalRank(1),
                       .pid = getpid(),
                       .state = lives ? "running" : "exited with 3",
                       .since = now_ - 10s},
            .page = page_.get(),
            .lives = lives};
  }

  const TimePoint now_ = BootClock::now();
  const std::unique_ptr<WorkerPage> page_ = std::make_unique<WorkerPage>();
  RankTable table_;
};

TEST_F(RankTableTest, ARankThatReportsNothingHasItsProcessAlone) {
  const std::vector<RankRow>& rows = table_.sample({source()}, now_);
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(rows[0].rank, Rank(5));
  EXPECT_EQ(rows[0].state, "running");
  EXPECT_EQ(rows[0].step, std::nullopt);
  EXPECT_EQ(rows[0].steps_per_second, std::nullopt);
  EXPECT_EQ(rows[0].collective, "");
  EXPECT_EQ(rows[0].waiting_s, std::nullopt);
  EXPECT_GT(rows[0].memory_bytes, 100'000);
  EXPECT_GE(rows[0].cpu_percent, 0.0);
}

TEST_F(RankTableTest, TheGpuIsThatOfARankThatLives) {
  RankTable::Source with_gpu = source();
  with_gpu.gpu = {.percent = 37, .memory_bytes = 1 << 20};
  with_gpu.gpu.processes = {{.pid = 1, .memory_bytes = 5}, {.pid = getpid(), .memory_bytes = 77}};
  RankTable::Source gone = source(false);
  gone.gpu = with_gpu.gpu;
  const std::vector<RankRow>& rows = table_.sample({with_gpu, gone, source()}, now_);
  EXPECT_EQ(rows[0].gpu_percent, 37.0);
  EXPECT_EQ(rows[0].gpu_memory_bytes, 1 << 20);
  EXPECT_EQ(rows[0].gpu_own_memory_bytes, 77);
  for (const std::size_t without : {1, 2}) {
    EXPECT_EQ(rows[without].gpu_percent, std::nullopt);
    EXPECT_EQ(rows[without].gpu_memory_bytes, std::nullopt);
    EXPECT_EQ(rows[without].gpu_own_memory_bytes, std::nullopt);
  }
}

TEST_F(RankTableTest, ARankWithoutAPageOrAProcessHasItsState) {
  RankTable::Source gone = source(false);
  gone.page = nullptr;
  const RankRow row = table_.sample({gone}, now_)[0];
  EXPECT_EQ(row.state, "exited with 3");
  EXPECT_EQ(row.memory_bytes, std::nullopt);
  gone = source();
  gone.worker.pid = 1 << 30;  // the kernel has no such process
  EXPECT_EQ(table_.sample({gone}, now_)[0].cpu_percent, std::nullopt);
}

TEST_F(RankTableTest, TheRateIsFirstTheMeanSinceTheFirstStep) {
  report(100, now_ - 20s);
  report(150, now_);
  EXPECT_EQ(table_.sample({source()}, now_)[0].steps_per_second, 2.5);
  report(190, now_ + 10s);
  EXPECT_EQ(table_.sample({source()}, now_ + 10s)[0].steps_per_second, 4.0);
}

TEST_F(RankTableTest, ARankHasTheTotalThatItHasTold) {
  page().total_steps = 10'000;
  EXPECT_EQ(table_.sample({source()}, now_)[0].total_steps, std::nullopt) << "and no step";
  report(100, now_);
  EXPECT_EQ(table_.sample({source()}, now_)[0].total_steps, 10'000);
}

TEST_F(RankTableTest, ARankThatLivesHasTheSharesOfItsSteps) {
  EXPECT_EQ(table_.sample({source()}, now_)[0].step_percent, std::nullopt);
  const StepShares shares{.data = 62.5, .forward = 10, .backward = 20};
  write_step_shares(shares, page());
  EXPECT_EQ(table_.sample({source()}, now_)[0].step_percent, shares);
  EXPECT_EQ(table_.sample({source(false)}, now_)[0].step_percent, std::nullopt);
}

TEST_F(RankTableTest, ACallInProgressHasATimeAndAnEndedOneHasNot) {
  begin_call(FlightCall::kAllReduce, 4711, now_ - 2500ms);
  RankRow row = table_.sample({source()}, now_)[0];
  EXPECT_EQ(row.collective, "all_reduce 4711");
  EXPECT_EQ(row.waiting_s, 2.5);
  page().record_of(1).ended_ns = to_page_time(now_);
  row = table_.sample({source()}, now_ + 1s)[0];
  EXPECT_EQ(row.collective, "all_reduce 4711");
  EXPECT_EQ(row.waiting_s, std::nullopt);
}

TEST_F(RankTableTest, NonsenseInAPageHarmsNothing) {
  page().reports = 1;
  page().first_step_ns = ~std::uint64_t{0};
  page().calls = ~std::uint64_t{0};
  page().total_steps = -7;
  const RankRow row = table_.sample({source()}, now_)[0];
  EXPECT_EQ(row.steps_per_second, std::nullopt);
  EXPECT_EQ(row.collective, "");
  EXPECT_EQ(row.total_steps, std::nullopt);
  page().calls = 0;
  begin_call(FlightCall(77), ~std::uint64_t{0}, now_ + 24h);
  const RankRow later = table_.sample({source()}, now_)[0];
  EXPECT_EQ(later.collective, "call 77 18446744073709551615");
  EXPECT_EQ(later.waiting_s, std::nullopt) << "it begins later than now";
}

TEST_F(RankTableTest, IsSampledAtMostOnceInAPause) {
  EXPECT_EQ(table_.recent(now_), nullptr);
  table_.sample({source()}, now_);
  EXPECT_NE(table_.recent(now_ + RankTable::kPause - 1ms), nullptr);
  EXPECT_EQ(table_.recent(now_ + RankTable::kPause), nullptr);
  table_.clear();
  EXPECT_EQ(table_.recent(now_), nullptr);
}

TEST_F(RankTableTest, CpuIsThatSinceTheLastSample) {
  table_.sample({source()}, now_);
  const Duration before = process_stat(getpid())->cpu;
  while (process_stat(getpid())->cpu < before + 50ms) {
    // uses its processor
  }
  const RankRow row = table_.sample({source()}, now_ + 100ms)[0];
  EXPECT_GE(row.cpu_percent, 40.0);
  EXPECT_LE(row.cpu_percent, 300.0) << "the time is not in whole seconds";
}

TEST_F(RankTableTest, AStoppedProcessIsSeenAsStopped) {
  const pid_t child = fork();
  if (child == 0) {
    for (;;) pause();
  }
  kill(child, SIGSTOP);
  EXPECT_EQ(waitpid(child, nullptr, WUNTRACED), child);
  RankTable::Source stopped = source();
  stopped.worker.pid = child;
  EXPECT_EQ(table_.sample({stopped}, now_)[0].state, "stopped");
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
}

}  // namespace
}  // namespace ddprun
