#include "worker_lib/nccl/desync_detector.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ddprun {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::Each;
using testing::ElementsAre;
using testing::Ge;
using testing::Le;

constexpr CallHeader kSum{.count = 4, .kind = CallKind::kAllReduce, .type = ElementType::kF32};
constexpr CallHeader kBarrier{.kind = CallKind::kBarrier};

// A world of four ranks on two nodes of two. It runs the detector of one rank as time passes, in
// steps of the detector.
class DesyncDetectorTest : public testing::Test {
 protected:
  // rank: the rank that the detector belongs to.
  void watch_as(int rank) {
    rank_ = rank;
    watch_.emplace(rank, now_);
  }

  std::optional<std::string> pass(Duration time, bool is_moving) {
    for (const TimePoint end = now_ + time; now_ < end;) {
      now_ += milliseconds(20);
      auto told = watch_->look(now_, is_moving, sight());
      if (told) return told;
    }
    return std::nullopt;
  }

  DesyncDetector::Sight sight() {
    return {.read =
                [this](Duration patience) {
                  std::vector<std::optional<CallNote>> notes(4);
                  for (std::size_t rank = 0; rank < 4; ++rank) {
                    const bool is_here = static_cast<int>(rank) / 2 == rank_ / 2;
                    if (is_here || patience > Duration::zero()) {
                      notes[rank] = read_note(logs_[rank].note());
                    }
                  }
                  (patience > Duration::zero() ? asked_ : looked_).push_back(now_ - begin_);
                  return notes;
                },
            .awaits_unseen = [this](auto) { return waits_; }};
  }

  // Returns the times between the questions.
  std::vector<Duration> pauses() const {
    std::vector<Duration> pauses;
    for (std::size_t i = 1; i < asked_.size(); ++i) pauses.push_back(asked_[i] - asked_[i - 1]);
    return pauses;
  }

  const TimePoint begin_{seconds(1000)};
  TimePoint now_ = begin_;
  std::vector<CollectiveLog> logs_{4};
  bool waits_ = false;
  std::vector<Duration> looked_, asked_;

 private:
  int rank_ = 0;
  std::optional<DesyncDetector> watch_;
};

TEST_F(DesyncDetectorTest, TheOwnNodeIsLookedAtEvery80Ms) {
  watch_as(1);
  EXPECT_EQ(pass(milliseconds(240), /*is_moving=*/true), std::nullopt);
  EXPECT_THAT(looked_, ElementsAre(milliseconds(80), milliseconds(160), milliseconds(240)));
}

TEST_F(DesyncDetectorTest, TheFirstRankOfANodeAsksTheOthersOftenWhenNothingGetsOn) {
  watch_as(2);
  pass(seconds(2), /*is_moving=*/false);
  EXPECT_GE(asked_.size(), 6U);
  EXPECT_THAT(pauses(), Each(Le(milliseconds(400))));
  EXPECT_THAT(pauses(), Each(Ge(milliseconds(250))));
}

TEST_F(DesyncDetectorTest, TheFirstRankOfANodeAsksTheOthersMoreSeldomWhileCallsGetOn) {
  watch_as(0);
  pass(seconds(12), /*is_moving=*/true);
  EXPECT_THAT(pauses(), Each(Ge(milliseconds(500))));
  EXPECT_THAT(pauses(), Each(Le(milliseconds(600))));
  EXPECT_GE(asked_.size(), 20U);
}

TEST_F(DesyncDetectorTest, AnotherRankAsksWhenItWaitsForAMessageOfAnotherNode) {
  watch_as(3);
  pass(seconds(3), /*is_moving=*/false);
  EXPECT_TRUE(asked_.empty());
  waits_ = true;
  pass(milliseconds(80), /*is_moving=*/true);
  EXPECT_TRUE(asked_.empty());
  pass(seconds(60), /*is_moving=*/false);
  ASSERT_FALSE(asked_.empty());
  EXPECT_THAT(pauses().front(), Le(milliseconds(700)));
  EXPECT_THAT(pauses().back(), Ge(seconds(5)));
}

TEST_F(DesyncDetectorTest, ADisagreementThatHoldsCallsUpIsBelievedAtOnce) {
  watch_as(0);
  logs_[0].enter(kSum, 0);
  logs_[1].enter(kBarrier, 0);
  logs_[3].enter(kSum, 0);
  EXPECT_EQ(pass(milliseconds(80), /*is_moving=*/false),
            "the ranks disagree: ranks 0 and 3 called all_reduce #1 of 4 f32 (sum); rank 1 called "
            "barrier #1; rank 2 called nothing there yet");
}

TEST_F(DesyncDetectorTest, ADisagreementWhileCallsGetOnIsBelievedAtTheSecondLook) {
  watch_as(0);
  logs_[0].enter(kSum, 0);
  logs_[1].enter(kBarrier, 0);
  EXPECT_EQ(pass(milliseconds(80), /*is_moving=*/true), std::nullopt);
  logs_[2].enter(kSum, 0);
  logs_[3].enter(kSum, 0);
  EXPECT_EQ(pass(milliseconds(80), /*is_moving=*/true),
            "the ranks disagree: ranks 0, 2 and 3 called all_reduce #1 of 4 f32 (sum); rank 1 "
            "called barrier #1");
}

TEST_F(DesyncDetectorTest, ADisagreementBetweenNodesIsToldWithinASecondWhileCallsGetOn) {
  watch_as(0);
  logs_[0].enter(kSum, 0);
  logs_[1].enter(kSum, 0);
  logs_[2].enter(kBarrier, 0);
  EXPECT_NE(pass(seconds(1), /*is_moving=*/true), std::nullopt);
}

}  // namespace
}  // namespace ddprun
