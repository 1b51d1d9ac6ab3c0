#include "launcher/hang/core/watch.h"

#include <gtest/gtest.h>

namespace ddprun {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class HangWatchTest : public testing::Test {
 protected:
  HangWatchTest() { watch_.begin(2, now_); }

  // Checks at the normal period for this long. Returns whether a worker hung in the last check.
  bool live(Duration time) {
    bool hangs = false;
    for (const TimePoint end = now_ + time; now_ < end;) {
      now_ += watch_.period();
      hangs = watch_.look({first_, second_}, now_);
    }
    return hangs;
  }

  HangWatch watch_{seconds(10)};
  TimePoint now_{seconds(1000)};
  std::optional<PageSample> first_ = PageSample();
  std::optional<PageSample> second_ = PageSample();
};

TEST_F(HangWatchTest, AWorkerThatHasReportedNoStepHangsOnlyInACall) {
  first_->calls = 7;
  EXPECT_FALSE(live(seconds(1000)));
  first_->calls = first_->oldest_call = 8;
  EXPECT_FALSE(live(seconds(10)));
  EXPECT_TRUE(live(seconds(2)));
  EXPECT_TRUE(watch_.hangs(0));
  EXPECT_FALSE(watch_.hangs(1));
}

TEST_F(HangWatchTest, TheFirstReportBeginsTheIdleTime) {
  live(seconds(1000));
  first_->reports = 1;
  EXPECT_FALSE(live(seconds(10)));
}

TEST_F(HangWatchTest, WhoHasReportedHangsWhenNothingFollows) {
  first_->reports = 1;
  EXPECT_FALSE(live(seconds(11)));
  EXPECT_TRUE(live(seconds(1)));
  EXPECT_TRUE(watch_.hangs(0));
  EXPECT_FALSE(watch_.hangs(1));
  EXPECT_EQ(watch_.idle(0), seconds(11));
  ++first_->reports;
  EXPECT_FALSE(live(seconds(10))) << "it has come back";
}

TEST_F(HangWatchTest, AnyActivityCounts) {
  first_->reports = 1;
  for (int i = 0; i < 20; ++i) {
    ++first_->activity;
    EXPECT_FALSE(live(seconds(10)));
  }
}

TEST_F(HangWatchTest, OneCallThatTakesTooLongIsAHangWhateverElseIsDone) {
  first_->reports = 1;
  first_->oldest_call = 5;
  bool hangs = false;
  for (int i = 0; i < 12; ++i) {
    ++first_->reports;
    hangs = live(seconds(1));
    EXPECT_EQ(hangs, i == 11) << i;
  }
  ++first_->oldest_call;
  EXPECT_FALSE(live(seconds(1))) << "another one";
}

TEST_F(HangWatchTest, WhoWaitsForWhatTakesAnotherOneLongDoesNotHang) {
  first_->reports = 1;
  first_->oldest_call = 5;
  first_->is_patient = true;
  EXPECT_FALSE(live(seconds(1000)));
  first_->is_patient = false;
  EXPECT_FALSE(live(seconds(10)));
  EXPECT_TRUE(live(seconds(2)));
}

TEST_F(HangWatchTest, WhoHasEndedDoesNotHang) {
  first_->reports = 1;
  live(seconds(9));
  first_.reset();
  EXPECT_FALSE(live(seconds(100)));
}

TEST_F(HangWatchTest, TheWatchersOwnAbsenceIsNoHang) {
  first_->reports = 1;
  live(seconds(2));
  now_ += seconds(3600);  // the agent or the machine was stopped
  EXPECT_FALSE(watch_.look({first_, second_}, now_));
  EXPECT_FALSE(live(seconds(5)));
}

TEST_F(HangWatchTest, ANewGenerationBeginsAnew) {
  first_->reports = 1;
  live(seconds(9));
  watch_.begin(2, now_);
  EXPECT_FALSE(live(seconds(9)));
}

TEST_F(HangWatchTest, WorkersThatReportNoStepForTheTimeoutAreToldOnce) {
  first_->reports = 1;
  live(seconds(10));
  EXPECT_TRUE(watch_.take_silent().empty()) << "they may still be loading";
  live(seconds(1));
  EXPECT_EQ(watch_.take_silent(), std::vector<std::size_t>{1});
  live(seconds(1));
  EXPECT_TRUE(watch_.take_silent().empty()) << "it is known";
}

TEST_F(HangWatchTest, WhoHasEndedOrReportedOrWaitsOrMakesCallsIsNotSilent) {
  first_.reset();
  second_->is_patient = true;
  live(seconds(30));
  EXPECT_TRUE(watch_.take_silent().empty());
  second_->is_patient = false;
  second_->calls = 1;
  live(seconds(30));
  EXPECT_TRUE(watch_.take_silent().empty());
}

TEST(HangWatchPeriod, IsASecondOrAQuarterOfAShorterTimeout) {
  EXPECT_EQ(HangWatch(seconds(600)).period(), seconds(1));
  EXPECT_EQ(HangWatch(seconds(2)).period(), milliseconds(500));
}

}  // namespace
}  // namespace ddprun
