#include "rendezvous/core/restart_budget.h"

#include <gtest/gtest.h>

namespace ddprun {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr Duration kLong = std::chrono::hours(1);
const TimePoint kStart{seconds(1000)};

WorkerEnd exited(int code) { return {.kind = EndKind::kExited, .code = code}; }
WorkerEnd killed(int signal) { return {.kind = EndKind::kSignaled, .code = signal}; }

TEST(RestartBudget, AllowsAsManyRestartsAsThereAre) {
  RestartBudget budget(2, {});
  EXPECT_TRUE(budget.decide(exited(1), kLong, kStart).restart);
  EXPECT_TRUE(budget.decide(killed(9), kLong, kStart + kLong).restart);
  EXPECT_EQ(budget.in_words(kStart), "2 of 2");
  EXPECT_FALSE(budget.decide(exited(1), kLong, kStart + 2 * kLong).restart);
  EXPECT_EQ(budget.used(), 2);
}

TEST(RestartBudget, AWindowCountsOnlyTheRestartsInIt) {
  RestartBudget budget(2, {.window = seconds(60)});
  EXPECT_TRUE(budget.decide(exited(1), kLong, kStart).restart);
  EXPECT_TRUE(budget.decide(exited(1), kLong, kStart + seconds(30)).restart);
  const RestartBudget::Decision third = budget.decide(exited(1), kLong, kStart + seconds(59));
  EXPECT_FALSE(third.restart);
  EXPECT_EQ(third.why_not, "restarts used: 2 (2 of 2 within 60 s)");
  EXPECT_TRUE(budget.decide(exited(1), kLong, kStart + seconds(60)).restart) << "the first is over";
  EXPECT_EQ(budget.used(), 3) << "of the whole job";
  EXPECT_EQ(budget.in_words(kStart + seconds(60)), "3 (2 of 2 within 60 s)");
}

TEST(RestartBudget, GoesOnInAnotherLifeOfTheService) {
  RestartBudget before(2, {.window = seconds(60)});
  before.decide(exited(1), kLong, kStart);
  before.decide(exited(1), kLong, kStart + seconds(20));
  RestartBudget after(2, {.window = seconds(60)});
  after.restore(before.used(), before.ages(kStart + seconds(25)), kStart + seconds(500));
  EXPECT_FALSE(after.decide(exited(1), kLong, kStart + seconds(510)).restart);
  EXPECT_TRUE(after.decide(exited(1), kLong, kStart + seconds(535)).restart);
  EXPECT_EQ(after.used(), 3);
}

TEST(RestartBudget, AFinalCodeEndsTheJobWhateverIsLeft) {
  RestartBudget budget(9, {.final_codes = {{2, 2}, {64, 78}, {137, 137}}});
  EXPECT_TRUE(budget.decide(exited(1), kLong, kStart).restart);
  const RestartBudget::Decision decision = budget.decide(exited(64), kLong, kStart);
  EXPECT_FALSE(decision.restart);
  EXPECT_EQ(decision.why_not, "exit code 64 is one of --no-restart-on");
  EXPECT_FALSE(budget.decide(killed(9), kLong, kStart).restart) << "128+9";
  // A lost node has no exit code: 68 is ours.
  EXPECT_TRUE(budget.decide({.kind = EndKind::kNodeLost}, kLong, kStart).restart);
}

TEST(RestartBudget, AWorkerThatCannotBeStartedIsNotTriedAgain) {
  RestartBudget budget(9, {});
  EXPECT_FALSE(budget.decide({.kind = EndKind::kNotStarted, .code = 2}, kLong, kStart).restart);
  EXPECT_EQ(budget.used(), 0);
}

TEST(RestartBudget, QuickFailuresInARowArePausedForLongerAndLonger) {
  RestartBudget budget(100, {});
  std::vector<Duration> pauses;
  for (int i = 0; i < 10; ++i) pauses.push_back(budget.decide(exited(1), seconds(1), kStart).pause);
  EXPECT_EQ(pauses[0], Duration(0)) << "the first one is restarted at once";
  EXPECT_EQ(pauses[1], RestartBudget::kFirstPause);
  EXPECT_EQ(pauses[2], 2 * RestartBudget::kFirstPause);
  EXPECT_EQ(pauses[3], 4 * RestartBudget::kFirstPause);
  EXPECT_EQ(pauses[8], RestartBudget::kLongestPause);
  EXPECT_EQ(pauses[9], RestartBudget::kLongestPause);
  EXPECT_EQ(budget.decide(exited(1), RestartBudget::kQuick, kStart).pause, Duration(0));
  EXPECT_EQ(budget.decide(exited(1), milliseconds(5), kStart).pause, Duration(0)) << "a new row";
}

TEST(RestartBudget, LostNodesAndGenerationsOfUnknownAgeAreNoQuickFailures) {
  RestartBudget budget(100, {});
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(budget.decide({.kind = EndKind::kNodeLost}, seconds(1), kStart).pause, Duration(0));
    EXPECT_EQ(budget.decide(exited(1), std::nullopt, kStart).pause, Duration(0));
  }
}

TEST(RestartBudget, BelievesAnEarlierLifeOnlyAsFarAsItCanHaveBeen) {
  RestartBudget budget(3, {});
  budget.believe(2);
  EXPECT_EQ(budget.used(), 2);
  budget.believe(1000);
  EXPECT_EQ(budget.used(), 3);
  budget.believe(1);
  EXPECT_EQ(budget.used(), 3);
}

}  // namespace
}  // namespace ddprun
