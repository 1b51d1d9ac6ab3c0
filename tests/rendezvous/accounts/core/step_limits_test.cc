#include "rendezvous/accounts/core/step_limits.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

namespace ddprun {
namespace {

using std::chrono::seconds;

constexpr StepShares kComputes{.data = 2, .forward = 30, .backward = 55, .communication = 10};
constexpr StepShares kCommunicates{.data = 2, .forward = 20, .backward = 35, .communication = 41};
constexpr StepShares kReads{.data = 40, .forward = 20, .backward = 35, .communication = 3};

class StepLimitsTest : public testing::Test {
 protected:
  // The ranks report this, and the job is looked at, some times 30 s apart. Returns all news.
  std::string report(const std::vector<StepShares>& ranks, int times = 2) {
    std::string news;
    for (int i = 0; i < times; ++i) {
      now_ += seconds(30);
      for (std::size_t rank = 0; rank < ranks.size(); ++rank) limits_.take(rank, ranks[rank]);
      if (const auto one = limits_.judge(now_)) news += (news.empty() ? "" : "\n") + *one;
    }
    return news;
  }
  static std::vector<StepShares> ranks(int count, const StepShares& shares) {
    return std::vector<StepShares>(static_cast<std::size_t>(count), shares);
  }
  void wait() { now_ += StepLimits::kLongestQuiet; }

  StepLimits limits_;
  TimePoint now_{seconds(1000)};
};

TEST_F(StepLimitsTest, TheLargestPartIsToldOnceWhenItWasSeenTwice) {
  limits_.begin(4);
  EXPECT_EQ(report(ranks(4, kCommunicates), 1), "");
  EXPECT_EQ(report(ranks(4, kCommunicates), 1), "41 % of a step is communication");
  wait();
  EXPECT_EQ(report(ranks(4, kCommunicates), 50), "");
}

TEST_F(StepLimitsTest, RanksThatStandOutAreNamed) {
  limits_.begin(8);
  auto all = ranks(8, kCommunicates);
  all[3] = all[5] = {.data = 38, .forward = 20, .backward = 35, .communication = 5};
  EXPECT_EQ(report(all), "35 % of a step is backward; ranks 3,5: 38 % is data");
  wait();
  all[5] = kCommunicates;
  EXPECT_EQ(report(all), "35 % of a step is backward; rank 3: 38 % is data")
      << "communication has 36.5 %, which is not clearly more";
}

TEST_F(StepLimitsTest, OneOfTwoRanksCanStandOut) {
  limits_.begin(2);
  EXPECT_EQ(report({kComputes, {.data = 2, .forward = 30, .backward = 35, .checkpoint = 33}}),
            "45 % of a step is backward; rank 1: 33 % is checkpoint");
  limits_ = StepLimits();
  limits_.begin(1);
  EXPECT_EQ(report({kReads}), "40 % of a step is data");
}

// The ranks that wait for a slow one have more communication. It is the slow one that is odd.
TEST_F(StepLimitsTest, ARankThatWaitsForAnotherDoesNotStandOut) {
  limits_.begin(3);
  const StepShares waits{.data = 2, .forward = 10, .backward = 20, .communication = 66};
  EXPECT_EQ(report({kReads, kReads, waits}), "30 % of a step is backward");
}

TEST_F(StepLimitsTest, ManyRanksAreCountedNotNamed) {
  limits_.begin(100);
  auto all = ranks(100, kComputes);
  for (std::size_t rank = 0; rank < 34; rank += 2) all[rank] = kReads;
  EXPECT_EQ(report(all), "52 % of a step is backward; 17 ranks: 40 % is data");
}

TEST_F(StepLimitsTest, ASmallChangeIsNoNews) {
  limits_.begin(2);
  const auto with = [](double communication, double backward) {
    return StepShares{.forward = 10, .backward = backward, .communication = communication};
  };
  EXPECT_EQ(report(ranks(2, with(44, 40))), "44 % of a step is communication");
  wait();
  EXPECT_EQ(report(ranks(2, with(40, 49))), "") << "9 more are not clear";
  EXPECT_EQ(report(ranks(2, with(62, 20))), "") << "18 more";
  EXPECT_EQ(report(ranks(2, with(38, 50))), "50 % of a step is backward");
  wait();
  EXPECT_EQ(report(ranks(2, with(10, 75))), "75 % of a step is backward") << "25 more";
}

TEST_F(StepLimitsTest, ARankThatWasToldStandsOutUntilItIsClearlyBack) {
  limits_.begin(4);
  auto all = ranks(4, {.data = 10, .forward = 20, .backward = 60});
  all[2] = {.data = 26, .forward = 20, .backward = 50};
  EXPECT_EQ(report(all), "58 % of a step is backward; rank 2: 26 % is data");
  wait();
  all[2].data = 19;
  EXPECT_EQ(report(all, 20), "");
  all[2].data = 17;
  EXPECT_EQ(report(all, 20), "58 % of a step is backward");
  wait();
  all[2].data = 24;
  EXPECT_EQ(report(all, 20), "") << "14 more than the others";
}

TEST_F(StepLimitsTest, NewsOfAJobThatChangesAllTheTimeBecomeRareAlsoOverGenerations) {
  std::vector<TimePoint> news;
  for (int generation = 0; generation < 3000; ++generation) {
    limits_.begin(2);
    const bool is_even = generation % 2 == 0;
    if (!report(ranks(2, is_even ? kCommunicates : kReads)).empty()) news.push_back(now_);
    limits_.end();
  }
  ASSERT_GE(news.size(), 9u);
  Duration quiet = StepLimits::kQuiet;
  for (std::size_t i = 1; i < news.size(); ++i) {
    EXPECT_GE(news[i] - news[i - 1], quiet) << i;
    EXPECT_LE(news[i] - news[i - 1], quiet + std::chrono::minutes(2)) << i;
    quiet = std::min(2 * quiet, StepLimits::kLongestQuiet);
  }
  EXPECT_EQ(quiet, StepLimits::kLongestQuiet);
}

TEST_F(StepLimitsTest, NewsThatHadToWaitAreToldLater) {
  limits_.begin(2);
  EXPECT_EQ(report(ranks(2, kCommunicates)), "41 % of a step is communication");
  EXPECT_EQ(report(ranks(2, kReads), 40), "40 % of a step is data");
}

TEST_F(StepLimitsTest, OneOddLookIsNoNews) {
  limits_.begin(2);
  report(ranks(2, kCommunicates));
  wait();
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(report(ranks(2, kReads), 1), "");
    EXPECT_EQ(report(ranks(2, kCommunicates), 1), "");
  }
}

TEST_F(StepLimitsTest, RanksThatAreOddByTurnsAreNotNamed) {
  limits_.begin(100);
  std::string news;
  const auto look = [&](std::size_t odd, bool is_7_odd) {
    auto all = ranks(100, kComputes);
    all[odd] = kReads;
    if (is_7_odd) all[7] = {.data = 30, .forward = 30, .backward = 35};
    news += report(all, 1);
  };
  for (std::size_t i = 0; i < 100; ++i) look(i, false);
  EXPECT_EQ(news, "55 % of a step is backward");
  news.clear();
  wait();
  for (std::size_t i = 10; i < 100; ++i) look(i, true);
  EXPECT_EQ(news, "55 % of a step is backward; rank 7: 30 % is data");
  news.clear();
  wait();
  for (std::size_t i = 10; i < 100; ++i) look(i, i % 2 == 0);
  EXPECT_EQ(news, "") << "in one look it is not odd";
  for (std::size_t i = 10; i < 100; ++i) look(i, false);
  EXPECT_EQ(news, "55 % of a step is backward");
}

TEST_F(StepLimitsTest, RanksThatAreOddByTurnsDoNotHideOneThatStaysOdd) {
  const std::string of_7 = "55 % of a step is backward; rank 7: 30 % is data";
  auto all = ranks(100, kComputes);
  all[7] = {.data = 30, .forward = 30, .backward = 35};
  const auto looks = [&](bool is_by_turns) {
    std::string news;
    for (std::size_t i = 10; i < 100; ++i) {
      auto with_odd = all;
      with_odd[is_by_turns ? i : 9] = {.data = 2, .backward = 45, .checkpoint = 50};
      news += report(with_odd, 1);
    }
    return news;
  };
  limits_.begin(100);
  EXPECT_EQ(looks(true), of_7);
  limits_ = StepLimits();
  limits_.begin(100);
  EXPECT_EQ(report(all), of_7);
  wait();
  EXPECT_EQ(looks(true), "") << "rank 7 has not changed";
  EXPECT_EQ(looks(false), "55 % of a step is backward; rank 9: 50 % is checkpoint") << "is farther";
  wait();
  all[7] = kComputes;
  EXPECT_EQ(looks(true), "55 % of a step is backward");
}

TEST_F(StepLimitsTest, OneLookDoesNotClearARankForOneThatIsLessFar) {
  limits_.begin(4);
  auto all = ranks(4, {.data = 2, .forward = 20, .backward = 60});
  all[2].data = 32;
  EXPECT_EQ(report(all), "60 % of a step is backward; rank 2: 32 % is data");
  wait();
  all[1].checkpoint = 18;
  for (int i = 0; i < 10; ++i) {
    all[2].data = i % 2 == 0 ? 2 : 32;
    EXPECT_EQ(report(all, 1), "") << i;
  }
  all[2].data = 2;
  EXPECT_EQ(report(all), "60 % of a step is backward; rank 1: 18 % is checkpoint");
}

TEST_F(StepLimitsTest, ThePauseIsShortAgainAfterACalmTime) {
  limits_.begin(2);
  report(ranks(2, kCommunicates));
  wait();
  EXPECT_NE(report(ranks(2, kReads)), "");
  EXPECT_EQ(report(ranks(2, kCommunicates), 19), "") << "9.5 minutes";
  EXPECT_NE(report(ranks(2, kCommunicates), 1), "");
  EXPECT_EQ(report(ranks(2, kReads), 39), "") << "19.5 minutes";
  EXPECT_NE(report(ranks(2, kReads), 1), "");
}

TEST_F(StepLimitsTest, RanksWithoutSharesAreLeftOut) {
  limits_.begin(3);
  EXPECT_FALSE(limits_.summary());
  EXPECT_FALSE(limits_.judge(now_));
  limits_.take(1, kReads);
  ASSERT_TRUE(limits_.summary());
  EXPECT_EQ(share_of(limits_.summary()->mean, StepPart::kData), 40);
  limits_.take(2, kComputes);
  EXPECT_EQ(share_of(limits_.summary()->mean, StepPart::kData), 21);
  EXPECT_EQ(share_of(limits_.summary()->highest, StepPart::kData), 40);
  limits_.end();
  EXPECT_FALSE(limits_.summary());
}

TEST_F(StepLimitsTest, AgentsMaySendAnyNumber) {
  limits_.begin(2);
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  const StepShares nonsense{.data = kNan, .forward = -1e300, .backward = 1e300, .checkpoint = 101};
  EXPECT_EQ(report({nonsense, nonsense}, 3), "");
  ASSERT_TRUE(limits_.summary());
  EXPECT_EQ(limits_.summary()->highest, PartShares{});
}

}  // namespace
}  // namespace ddprun
