#include "worker_lib/ddp/core/step_statistics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace ddprun {
namespace {

using std::chrono::milliseconds;
using testing::Each;
using testing::Field;
using testing::IsEmpty;

TimePoint at(int ms) { return TimePoint(milliseconds(ms)); }

// Returns a record with this number of buckets, of a pass that began at 100 ms.
StepRecord record_of(std::size_t buckets) {
  return {3, at(100), std::vector<BucketTimes>(buckets, {.gradients = 2, .bytes = 80})};
}

TEST(StepRecord, CountsFromTheBeginningOfTheBackwardPass) {
  StepRecord record = record_of(1);
  record.gradient_came(0, at(110));
  record.gradient_came(0, at(120));
  record.computed(at(130));
  record.sent(0, at(131));
  record.done(0, at(140));
  const StepTimes step = record.end(at(145));
  EXPECT_EQ(step.pass, 3);
  EXPECT_EQ(step.backward, milliseconds(45));
  EXPECT_EQ(step.compute, milliseconds(30));
  ASSERT_EQ(step.buckets.size(), 1u);
  EXPECT_EQ(step.buckets[0].gradients, 2u);
  EXPECT_EQ(step.buckets[0].bytes, 80u);
  EXPECT_EQ(step.buckets[0].ready, milliseconds(20));
  EXPECT_EQ(step.buckets[0].sent, milliseconds(31));
  EXPECT_EQ(step.buckets[0].done, milliseconds(40));
}

TEST(StepRecord, ABucketToWhichNothingCameIsReadyWhenItIsSent) {
  StepRecord record = record_of(1);
  record.sent(0, at(105));
  record.computed(at(130));
  record.done(0, at(140));
  EXPECT_EQ(record.end(at(140)).buckets[0].ready, milliseconds(5));
}

struct WayCase {
  std::string name;
  // When each bucket was sent and done. The pass began at 100 and computed until 130.
  std::vector<std::pair<int, int>> buckets;
  int communication, overlap, exposed;
};

class Ways : public testing::TestWithParam<WayCase> {};
INSTANTIATE_TEST_SUITE_P(
    StepRecord, Ways,
    testing::Values(WayCase{"BeforeTheEndOfComputing", {{110, 120}}, 10, 10, 0},
                    WayCase{"AfterIt", {{130, 150}}, 20, 0, 20},
                    WayCase{"AcrossIt", {{120, 150}}, 30, 10, 20},
                    // The time between them is not counted.
                    WayCase{"Apart", {{105, 110}, {120, 150}}, 35, 15, 20},
                    // Overlapping time is not counted twice.
                    WayCase{"Overlapping", {{105, 125}, {110, 140}}, 35, 25, 10},
                    WayCase{"OneInTheOther", {{105, 140}, {110, 120}}, 35, 25, 10},
                    WayCase{"Touching", {{105, 110}, {110, 130}, {130, 131}}, 26, 25, 1},
                    WayCase{"OfNoLength", {{130, 130}}, 0, 0, 0}),
    [](const auto& one) { return one.param.name; });

TEST_P(Ways, TimeIsCountedOnceAndPartedWhereComputingEnds) {
  StepRecord record = record_of(GetParam().buckets.size());
  record.computed(at(130));
  for (std::size_t i = 0; i < GetParam().buckets.size(); ++i) {
    record.sent(i, at(GetParam().buckets[i].first));
    record.done(i, at(GetParam().buckets[i].second));
  }
  const StepTimes step = record.end(at(160));
  EXPECT_EQ(step.communication, milliseconds(GetParam().communication));
  EXPECT_EQ(step.overlap, milliseconds(GetParam().overlap));
  EXPECT_EQ(step.exposed, milliseconds(GetParam().exposed));
}

StepTimes step_of(int ms, std::size_t buckets = 1) {
  const milliseconds time(ms);
  return {.pass = ms,
          .forward = time,
          .exchange = time,
          .backward = time,
          .compute = time,
          .communication = time,
          .overlap = time,
          .exposed = time,
          .buckets = std::vector<BucketTimes>(
              buckets, {.gradients = 1, .bytes = 4, .ready = time, .sent = time, .done = time})};
}

void expect_spread(const Spread& spread, double min, double median, double mean, double max) {
  const auto ns = [](double ms) { return Duration(static_cast<std::int64_t>(ms * 1e6)); };
  EXPECT_EQ(spread.min, ns(min));
  EXPECT_EQ(spread.median, ns(median));
  EXPECT_EQ(spread.mean, ns(mean));
  EXPECT_EQ(spread.max, ns(max));
}

TEST(StepStatistics, HaveNothingToSayOfNoStep) {
  const StepStatistics statistics;
  EXPECT_FALSE(statistics.last());
  EXPECT_EQ(statistics.summary().steps, 0u);
  EXPECT_EQ(statistics.summary().backward.max, Duration());
  EXPECT_THAT(statistics.summary().buckets, IsEmpty());
}

TEST(StepStatistics, SummariseEachTime) {
  StepStatistics statistics;
  for (const int ms : {9, 2, 4}) statistics.add(step_of(ms));
  EXPECT_EQ(statistics.last()->pass, 4);
  StepSummary summary = statistics.summary();
  EXPECT_EQ(summary.steps, 3u);
  for (const Spread* spread :
       {&summary.forward, &summary.exchange, &summary.backward, &summary.compute,
        &summary.communication, &summary.overlap, &summary.exposed})
    expect_spread(*spread, 2, 4, 5, 9);
  EXPECT_EQ(summary.buckets[0].done, milliseconds(4));
  statistics.add(step_of(5));  // an even number of steps: between 4 and 5
  summary = statistics.summary();
  expect_spread(summary.backward, 2, 4.5, 5, 9);
  EXPECT_EQ(summary.buckets[0].ready, Duration(4'500'000));
  EXPECT_EQ(summary.buckets[0].bytes, 4u);
}

TEST(StepStatistics, KeepAHundredSteps) {
  StepStatistics statistics;
  for (int ms = 1; ms <= 250; ++ms) statistics.add(step_of(ms));
  EXPECT_EQ(statistics.summary().steps, kRecentSteps);
  expect_spread(statistics.summary().compute, 151, 200.5, 200.5, 250);
}

TEST(StepStatistics, ForgetStepsWithOtherBucketsWhenTheFirstWithTheNewOnesComes) {
  StepStatistics statistics;
  statistics.add(step_of(1000));
  statistics.change_buckets();
  EXPECT_EQ(statistics.last()->pass, 1000);
  EXPECT_EQ(statistics.summary().steps, 1u);
  for (const int ms : {1, 2, 3}) statistics.add(step_of(ms, 2));
  EXPECT_EQ(statistics.summary().steps, 3u);
  expect_spread(statistics.summary().exposed, 1, 2, 2, 3);
  EXPECT_THAT(statistics.summary().buckets, Each(Field(&BucketTimes::sent, milliseconds(2))));
}

}  // namespace
}  // namespace ddprun
