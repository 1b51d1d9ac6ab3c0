#include "launcher/hang/core/slow_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace ddprun {
namespace {

using std::chrono::milliseconds;
using testing::ElementsAre;
using testing::IsEmpty;

using Marks = std::vector<std::vector<StepEntry>>;

// A node whose workers do steps of 100 ms, with 20 ms of communication.
class SlowWatchTest : public testing::Test {
 protected:
  SlowWatchTest() { watch_.begin(Rank(8), 4, "n2"); }

  // Does steps. more: by how much the own time of worker 2 is longer.
  void steps(int count, Duration more) {
    for (int i = 0; i < count; ++i) {
      const Duration own = milliseconds(80);
      const Duration whole = own + std::max(more, Duration(0)) + milliseconds(20);
      ++number_;
      now_ += whole;
      for (std::size_t worker = 0; worker < marks_.size(); ++worker) {
        waited_[worker] += whole - own - (worker == 2 ? more : Duration(0));
        marks_[worker].push_back(
            {.number = number_,
             .step = 100 + static_cast<std::int64_t>(number_ % wraps_at_),
             .ns = to_page_time(now_ + milliseconds(worker)),
             .waited_ns = static_cast<std::uint64_t>(waited_[worker].count())});
        if (marks_[worker].size() > kStepMarks) marks_[worker].erase(marks_[worker].begin());
      }
    }
  }

  SlowWatch watch_;
  std::uint64_t number_ = 0;
  std::uint64_t wraps_at_ = 1'000'000;  // steps of an epoch, in a program that counts within one
  TimePoint now_{milliseconds(1000)};
  Marks marks_{4};
  std::vector<Duration> waited_ = std::vector<Duration>(4);
};

TEST_F(SlowWatchTest, ARankIsNamedOnceAndThenThatItHasRecovered) {
  steps(50, Duration(0));
  EXPECT_THAT(watch_.look(marks_), IsEmpty());
  EXPECT_EQ(watch_.slow(2), "");
  steps(30, milliseconds(12));
  EXPECT_THAT(watch_.look(marks_),
              ElementsAre("rank 10 (node n2) is slow: the others wait 12 % of each step"));
  EXPECT_EQ(watch_.slow(2), "the others wait 12 % of each step");
  EXPECT_EQ(watch_.slow(1), "");
  steps(30, milliseconds(12));
  EXPECT_THAT(watch_.look(marks_), IsEmpty());
  steps(40, Duration(0));
  EXPECT_THAT(watch_.look(marks_), ElementsAre("rank 10 is as fast as the others again"));
  EXPECT_EQ(watch_.slow(2), "");
}

TEST_F(SlowWatchTest, StepsBetweenTwoLooksMayBeMissing) {
  for (int i = 0; i < 5; ++i) {
    steps(1000, milliseconds(12));
    const bool is_first = i == 0;
    EXPECT_THAT(watch_.look(marks_).size(), is_first ? 1 : 0);
  }
}

// It is not known which of the steps with the same number belong together.
TEST_F(SlowWatchTest, StepsWhoseNumberIsThereTwiceAreNotTaken) {
  wraps_at_ = 20;
  for (int i = 0; i < 5; ++i) {
    steps(60, milliseconds(20));
    EXPECT_THAT(watch_.look(marks_), IsEmpty());
  }
}

TEST_F(SlowWatchTest, AStepIsTakenOnce) {
  steps(12, milliseconds(12));
  for (int i = 0; i < 50; ++i) EXPECT_THAT(watch_.look(marks_), IsEmpty());
}

TEST_F(SlowWatchTest, ARankThatIsSlowAgainAndAgainIsNamedThreeTimes) {
  int lines = 0;
  for (int i = 0; i < 10; ++i) {
    steps(60, milliseconds(20));
    lines += static_cast<int>(watch_.look(marks_).size());
    steps(60, Duration(0));
    lines += static_cast<int>(watch_.look(marks_).size());
  }
  EXPECT_EQ(lines, 2 * SlowWatch::kMostNamed);
}

TEST_F(SlowWatchTest, WorkersThatReportNothingOrNonsenseAreNotCompared) {
  steps(60, milliseconds(20));
  marks_[3].clear();
  EXPECT_THAT(watch_.look(marks_), IsEmpty());
  EXPECT_THAT(watch_.look({}), IsEmpty());
  steps(60, milliseconds(20));
  for (StepEntry& one : marks_[1]) one = {.number = ~0ull, .step = one.step, .ns = ~one.ns};
  EXPECT_THAT(watch_.look(marks_), IsEmpty());
  EXPECT_EQ(watch_.slow(2), "");
}

TEST_F(SlowWatchTest, ANewGenerationBeginsAnew) {
  steps(60, milliseconds(20));
  EXPECT_EQ(watch_.look(marks_).size(), 1u);
  watch_.begin(Rank(0), 4, "");
  EXPECT_EQ(watch_.slow(2), "");
  EXPECT_THAT(watch_.look(marks_),
              ElementsAre("rank 2 is slow: the others wait 20 % of each step"));
}

}  // namespace
}  // namespace ddprun
