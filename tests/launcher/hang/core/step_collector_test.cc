#include "launcher/hang/core/step_collector.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace ddprun {
namespace {

using std::chrono::milliseconds;
using testing::ElementsAre;
using testing::Field;
using testing::IsEmpty;
using testing::SizeIs;

// A node whose workers do steps of 100 ms, of which they wait 20 ms for others. Worker 2 computes
// for longer.
class StepCollectorTest : public testing::Test {
 protected:
  void steps(int count, Duration more) {
    for (int i = 0; i < count; ++i) {
      const Duration whole = milliseconds(100) + more;
      ++number_;
      now_ += whole;
      for (std::size_t worker = 0; worker < marks_.size(); ++worker) {
        waited_[worker] += milliseconds(20) + (worker == 2 ? Duration(0) : more);
        marks_[worker].push_back(
            {.number = number_,
             .step = 100 + static_cast<std::int64_t>(number_ % wraps_at_),
             .ns = to_page_time(now_ + milliseconds(worker)),
             .waited_ns = static_cast<std::uint64_t>(waited_[worker].count())});
        if (marks_[worker].size() > kStepMarks) marks_[worker].erase(marks_[worker].begin());
      }
    }
  }
  std::vector<StepTimes> take(std::size_t most = kMaxReportedSteps) {
    return collector_.take(marks_, most);
  }

  StepCollector collector_;
  std::uint64_t number_ = 0;
  std::uint64_t wraps_at_ = 1'000'000;  // steps of an epoch, in a program that counts within one
  TimePoint now_{milliseconds(1000)};
  std::vector<std::vector<StepEntry>> marks_{4};
  std::vector<Duration> waited_ = std::vector<Duration>(4);
};

TEST_F(StepCollectorTest, AStepHasTheTimesOfAllWorkersAndIsTakenOnce) {
  steps(3, milliseconds(12));
  const StepTimes times{
      .step = 102, .whole_us = 112'000, .own_us = {80'000, 80'000, 92'000, 80'000}};
  const auto taken = take();
  ASSERT_EQ(taken.size(), 2u) << "the time of the first step is not known";
  EXPECT_EQ(taken[0], times);
  EXPECT_EQ(taken[1].step, 103);
  EXPECT_THAT(take(), IsEmpty());
  steps(1, Duration(0));
  EXPECT_THAT(take(), ElementsAre(Field(&StepTimes::step, 104)));
  collector_.begin();
  EXPECT_THAT(take(), SizeIs(3));
}

TEST_F(StepCollectorTest, OnlyTheNewestStepsAreKept) {
  steps(1000, Duration(0));
  EXPECT_THAT(take(), SizeIs(kStepMarks - 1));
  steps(30, Duration(0));
  const auto taken = take(16);
  ASSERT_EQ(taken.size(), 16u);
  EXPECT_EQ(taken.back().step, 100 + 1030);
}

TEST_F(StepCollectorTest, AStepThatAWorkerHasNotReportedYetIsTakenLater) {
  steps(5, Duration(0));
  const StepEntry last = marks_[1].back();
  marks_[1].pop_back();
  EXPECT_THAT(take(), SizeIs(3));
  marks_[1].push_back(last);
  EXPECT_THAT(take(), ElementsAre(Field(&StepTimes::step, 105)));
}

// It is not known which of the steps with the same number belong together.
TEST_F(StepCollectorTest, StepsWhoseNumberIsThereTwiceAreNotTaken) {
  wraps_at_ = 20;
  steps(60, Duration(0));
  EXPECT_THAT(take(), IsEmpty());
}

TEST_F(StepCollectorTest, WorkersThatReportNothingOrNonsenseHaveNoSteps) {
  EXPECT_THAT(collector_.take({}, 64), IsEmpty());
  steps(60, Duration(0));
  const auto good = marks_;
  marks_[3].clear();
  EXPECT_THAT(take(), IsEmpty());
  marks_ = good;
  for (StepEntry& one : marks_[1]) one = {.number = ~0ull, .step = one.step, .ns = ~one.ns};
  EXPECT_THAT(take(), IsEmpty());
  marks_ = good;
  for (StepEntry& one : marks_[0]) one.waited_ns = ~one.waited_ns;
  const auto taken = take();
  ASSERT_THAT(taken, testing::Not(IsEmpty()));
  EXPECT_LE(taken[0].own_us[0], taken[0].whole_us);
}

}  // namespace
}  // namespace ddprun
