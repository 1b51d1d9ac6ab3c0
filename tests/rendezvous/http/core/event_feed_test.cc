#include "rendezvous/http/core/event_feed.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ddprun {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::ElementsAre;
using testing::IsEmpty;

TEST(EventText, EachLineIsDataAndAnEmptyLineEndsTheEvent) {
  EXPECT_EQ(event_text("{\n}"), "data: {\ndata: }\n\n");
  EXPECT_EQ(event_text("a\n\nb"), "data: a\ndata: \ndata: b\n\n");
}

class EventFeedTest : public testing::Test {
 protected:
  // Takes a turn. An edition takes no time to make, and has no bytes.
  EventFeed::Turn turn() {
    const EventFeed::Turn turn = feed_.turn(now_);
    if (turn.make) feed_.made(now_, now_, 0, turn.to.size());
    return turn;
  }
  void send_all() {
    for (const EventFeed::Reader reader : turn().to) feed_.idle(reader);
  }
  void pass(Duration time) { now_ += time; }

  EventFeed feed_;
  TimePoint now_{seconds(1000)};
};

TEST_F(EventFeedTest, MakesNothingWithoutReaders) {
  feed_.changed();
  EXPECT_EQ(feed_.deadline(now_), std::nullopt);
  EXPECT_FALSE(turn().make);
}

TEST_F(EventFeedTest, TheFirstReaderIsSentAnEditionAtOnce) {
  feed_.add(1);
  EXPECT_EQ(feed_.deadline(now_), now_);
  const EventFeed::Turn first = turn();
  EXPECT_TRUE(first.make);
  EXPECT_THAT(first.to, ElementsAre(1));
  EXPECT_EQ(feed_.deadline(now_), std::nullopt) << "the only reader is busy";
}

TEST_F(EventFeedTest, ALaterReaderIsSentTheEditionThatIsThere) {
  feed_.add(1);
  send_all();
  pass(milliseconds(100));
  feed_.add(2);
  EXPECT_EQ(feed_.deadline(now_), now_);
  const EventFeed::Turn second = turn();
  EXPECT_FALSE(second.make);
  EXPECT_THAT(second.to, ElementsAre(2));
}

TEST_F(EventFeedTest, ManyChangesAreOneEdition) {
  feed_.add(1);
  send_all();
  const TimePoint begin = now_;
  for (int i = 0; i < 100; ++i) {
    feed_.changed();
    pass(milliseconds(1));
    EXPECT_THAT(turn().to, IsEmpty()) << "the pause is not over";
  }
  EXPECT_EQ(feed_.deadline(now_), begin + EventFeed::kMinPause);
  now_ = *feed_.deadline(now_);
  EXPECT_TRUE(turn().make);
  feed_.idle(1);
  EXPECT_EQ(feed_.deadline(now_), now_ + EventFeed::kRefresh) << "nothing changed after it";
}

TEST_F(EventFeedTest, TheLastEditionDoesNotWaitForThePause) {
  feed_.add(1);
  send_all();
  feed_.changed();
  EXPECT_FALSE(turn().make);
  feed_.hurry();
  const EventFeed::Turn last = turn();
  EXPECT_TRUE(last.make);
  EXPECT_THAT(last.to, ElementsAre(1));
}

TEST_F(EventFeedTest, RefreshesWithoutAChange) {
  feed_.add(1);
  send_all();
  pass(EventFeed::kRefresh - milliseconds(1));
  EXPECT_FALSE(turn().make);
  pass(milliseconds(1));
  EXPECT_TRUE(turn().make);
}

TEST_F(EventFeedTest, ABusyReaderMissesEditionsAndIsSentTheNewest) {
  feed_.add(1);
  feed_.add(2);
  EXPECT_THAT(turn().to, ElementsAre(1, 2));
  feed_.idle(1);
  for (int i = 0; i < 5; ++i) {
    pass(seconds(1));
    feed_.changed();
    EXPECT_THAT(turn().to, ElementsAre(1));
    feed_.idle(1);
  }
  feed_.idle(2);
  EXPECT_EQ(feed_.deadline(now_), now_);
  const EventFeed::Turn late = turn();
  EXPECT_FALSE(late.make);
  EXPECT_THAT(late.to, ElementsAre(2));
}

TEST_F(EventFeedTest, AReaderIsSentNoEditionTwice) {
  feed_.add(1);
  send_all();
  EXPECT_THAT(turn().to, IsEmpty());
}

TEST_F(EventFeedTest, EditionsThatTakeLongAreRare) {
  feed_.add(1);
  const EventFeed::Turn first = feed_.turn(now_);
  ASSERT_TRUE(first.make);
  feed_.made(now_, now_ + milliseconds(50), 0, 1);
  now_ += milliseconds(50);
  feed_.idle(1);
  feed_.changed();
  EXPECT_EQ(feed_.deadline(now_), now_ + EventFeed::kRest * milliseconds(50));
}

TEST_F(EventFeedTest, TheBytesOfAllReadersCount) {
  constexpr std::size_t kBytes = 256 * 1024;
  feed_.add(1);
  feed_.turn(now_);
  feed_.made(now_, now_, kBytes, 50);
  feed_.idle(1);
  feed_.changed();
  EXPECT_EQ(feed_.deadline(now_), now_ + EventFeed::kRest * 50 * kBytes * EventFeed::kPerByte);
}

TEST_F(EventFeedTest, AfterTheLastReaderAnEditionIsMadeAnewAndThePauseIsKept) {
  feed_.add(1);
  send_all();
  const TimePoint first = now_;
  pass(milliseconds(1));
  feed_.remove(1);
  EXPECT_EQ(feed_.size(), 0u);
  feed_.add(2);
  EXPECT_EQ(feed_.deadline(now_), first + EventFeed::kMinPause);
  EXPECT_THAT(turn().to, IsEmpty());
  now_ = first + EventFeed::kMinPause;
  const EventFeed::Turn second = turn();
  EXPECT_TRUE(second.make);
  EXPECT_THAT(second.to, ElementsAre(2));
}

TEST_F(EventFeedTest, AReaderThatIsGoneIsNotSentAnything) {
  feed_.add(1);
  feed_.add(2);
  feed_.remove(1);
  feed_.idle(1);
  EXPECT_THAT(turn().to, ElementsAre(2));
}

}  // namespace
}  // namespace ddprun
