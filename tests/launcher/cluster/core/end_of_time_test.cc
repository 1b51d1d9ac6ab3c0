#include "launcher/cluster/core/end_of_time.h"

#include <gtest/gtest.h>

namespace ddprun {
namespace {

using Step = EndOfTime::Step;
using std::chrono::hours;
using std::chrono::minutes;
using std::chrono::seconds;

class EndOfTimeTest : public testing::Test {
 protected:
  // Goes to the next step. Returns what it is.
  Step go_on() {
    if (!end_.next()) return Step::kWait;
    now_ = std::max(now_, *end_.next());
    return end_.step(now_);
  }
  void answer(std::optional<Duration> left) { end_.answered(left, now_); }

  static constexpr TimePoint kStart = TimePoint(hours(1000));
  TimePoint now_ = kStart;
  EndOfTime end_{seconds(60), kStart};
};

TEST_F(EndOfTimeTest, AsksAgainAndSavesBeforeTheEnd) {
  const TimePoint end = kStart + hours(2);
  int asked = 0;
  Step step = go_on();
  for (; step == Step::kAsk && asked < 1000; step = go_on()) {
    ++asked;
    EXPECT_EQ(end_.step(now_), Step::kWait) << "the answer has not come";
    answer(end - now_);
  }
  EXPECT_EQ(step, Step::kSave);
  EXPECT_EQ(now_, end - seconds(60));
  EXPECT_GT(asked, 5);
  EXPECT_LT(asked, 30);
  EXPECT_FALSE(end_.next());
  EXPECT_EQ(end_.step(now_ + hours(1)), Step::kWait) << "asks for a save once";
}

TEST_F(EndOfTimeTest, ALimitThatWasRaisedNearTheEndCounts) {
  ASSERT_EQ(go_on(), Step::kAsk);
  answer(minutes(10));
  TimePoint end = now_ + minutes(10);
  while (now_ < end - seconds(60)) {
    ASSERT_EQ(go_on(), Step::kAsk);
    answer(end - now_ + (now_ == end - seconds(60) ? hours(1) : hours(0)));
  }
  end += hours(1);
  Step step = go_on();
  for (int i = 0; i < 1000 && step == Step::kAsk; ++i, step = go_on()) answer(end - now_);
  EXPECT_EQ(step, Step::kSave);
  EXPECT_EQ(now_, end - seconds(60));
}

TEST_F(EndOfTimeTest, ALimitThatWasLoweredCountsAtTheNextAnswer) {
  ASSERT_EQ(go_on(), Step::kAsk);
  answer(hours(48));
  ASSERT_EQ(go_on(), Step::kAsk);
  EXPECT_EQ(now_, kStart + EndOfTime::kLongestPause);
  answer(seconds(30));
  EXPECT_EQ(go_on(), Step::kSave);
}

TEST_F(EndOfTimeTest, WithoutAnAnswerNearTheEndTheLastOneCounts) {
  ASSERT_EQ(go_on(), Step::kAsk);
  answer(minutes(3));
  Step step = go_on();
  for (int i = 0; i < 100 && step == Step::kAsk; ++i, step = go_on()) answer(std::nullopt);
  EXPECT_EQ(step, Step::kSave);
  EXPECT_EQ(now_, kStart + minutes(2));
}

TEST_F(EndOfTimeTest, WithoutAnyAnswerItAsksOnceAMinute) {
  for (int i = 0; i < 10; ++i) {
    ASSERT_EQ(go_on(), Step::kAsk);
    EXPECT_EQ(now_, kStart + minutes(i));
    answer(std::nullopt);
  }
}

TEST_F(EndOfTimeTest, WithoutALimitItAsksSeldom) {
  for (int i = 0; i < 10; ++i) {
    ASSERT_EQ(go_on(), Step::kAsk);
    EXPECT_EQ(now_, kStart + i * EndOfTime::kLongestPause);
    answer(Duration::max());
  }
}

TEST_F(EndOfTimeTest, OfAShortLimitHalfIsUsed) {
  ASSERT_EQ(go_on(), Step::kAsk);
  answer(seconds(58));
  const TimePoint end = now_ + seconds(58);
  Step step = go_on();
  for (int i = 0; i < 100 && step == Step::kAsk; ++i, step = go_on()) answer(end - now_);
  EXPECT_EQ(step, Step::kSave);
  EXPECT_EQ(now_, kStart + seconds(29));
}

TEST_F(EndOfTimeTest, WhereTheTimeIsOverItSavesAtOnce) {
  ASSERT_EQ(go_on(), Step::kAsk);
  answer(seconds(0));
  EXPECT_EQ(go_on(), Step::kSave);
  EXPECT_EQ(now_, kStart);
}

TEST(ParseTimeLeft, ReadsWhatSqueuePrints) {
  EXPECT_EQ(parse_time_left("0:07"), seconds(7));
  EXPECT_EQ(parse_time_left("42:07"), minutes(42) + seconds(7));
  EXPECT_EQ(parse_time_left("2:03:04"), hours(2) + minutes(3) + seconds(4));
  EXPECT_EQ(parse_time_left("1-02:03:04"), hours(26) + minutes(3) + seconds(4));
  EXPECT_EQ(parse_time_left("UNLIMITED"), Duration::max());
  EXPECT_EQ(parse_time_left("INVALID"), seconds(0));
}

TEST(ParseTimeLeft, OfOtherTextsIsNone) {
  for (const char* text : {"", "NOT_SET", "7", "1:2:3:4", "a:b", "-1:00", "1-", "1-7", ":", "1::2",
                           "99999999999:00", "x-01:02:03", "99999-00:00:00",
                           "slurm_load_jobs error: Unable to contact slurm controller"}) {
    EXPECT_EQ(parse_time_left(text), std::nullopt) << text;
  }
}

}  // namespace
}  // namespace ddprun
