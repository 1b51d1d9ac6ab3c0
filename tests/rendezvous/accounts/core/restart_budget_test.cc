#include "rendezvous/accounts/core/restart_budget.h"

#include <gtest/gtest.h>

#include "base/final_error.h"

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
  EXPECT_TRUE(budget.decide(exited(1), kLong, std::nullopt, kStart).restart);
  EXPECT_TRUE(budget.decide(killed(9), kLong, std::nullopt, kStart + kLong).restart);
  EXPECT_EQ(budget.in_words(kStart), "2 of 2");
  EXPECT_FALSE(budget.decide(exited(1), kLong, std::nullopt, kStart + 2 * kLong).restart);
  EXPECT_EQ(budget.used(), 2);
}

TEST(RestartBudget, AWindowCountsOnlyTheRestartsInIt) {
  RestartBudget budget(2, {.window = seconds(60)});
  EXPECT_TRUE(budget.decide(exited(1), kLong, std::nullopt, kStart).restart);
  EXPECT_TRUE(budget.decide(exited(1), kLong, std::nullopt, kStart + seconds(30)).restart);
  const RestartBudget::Decision third =
      budget.decide(exited(1), kLong, std::nullopt, kStart + seconds(59));
  EXPECT_FALSE(third.restart);
  EXPECT_EQ(third.why_not, "restarts used: 2 (2 of 2 within 60 s)");
  EXPECT_TRUE(budget.decide(exited(1), kLong, std::nullopt, kStart + seconds(60)).restart)
      << "the first is over";
  EXPECT_EQ(budget.used(), 3) << "of the whole job";
  EXPECT_EQ(budget.in_words(kStart + seconds(60)), "3 (2 of 2 within 60 s)");
}

TEST(RestartBudget, GoesOnInAnotherLifeOfTheService) {
  RestartBudget before(2, {.window = seconds(60)});
  before.decide(exited(1), kLong, std::nullopt, kStart);
  before.decide(exited(1), kLong, std::nullopt, kStart + seconds(20));
  RestartBudget after(2, {.window = seconds(60)});
  after.restore(before.used(), before.ages(kStart + seconds(25)), before.strikes(),
                kStart + seconds(500));
  EXPECT_FALSE(after.decide(exited(1), kLong, std::nullopt, kStart + seconds(510)).restart);
  EXPECT_TRUE(after.decide(exited(1), kLong, std::nullopt, kStart + seconds(535)).restart);
  EXPECT_EQ(after.used(), 3);
}

TEST(RestartBudget, AFinalErrorUsesNoRestart) {
  const std::string words = "take the directory run1: job 'B' has it; " + std::string(kFinalError);
  RestartBudget budget(9, {});
  WorkerEnd said = killed(6), printed = exited(1), lost{.kind = EndKind::kNodeLost};
  said.message = "ddprun::DistError: " + words;
  printed.stderr_tail = {"error: " + words + ": end one of the two", "bye"};
  lost.message = words;
  for (const WorkerEnd& end : {said, printed}) {
    const RestartBudget::Decision decision = budget.decide(end, kLong, std::nullopt, kStart);
    EXPECT_FALSE(decision.restart);
    EXPECT_EQ(decision.why_not, "its error says that a restart would fail in the same way");
  }
  EXPECT_EQ(budget.used(), 0);
  EXPECT_TRUE(budget.decide(lost, kLong, std::nullopt, kStart).restart);
}

TEST(RestartBudget, WordsOfAUsersProgramAreNoFinalError) {
  const std::string words = "load shard 3: a restart would fail in the same way";
  RestartBudget budget(9, {});
  WorkerEnd said = killed(6), printed = exited(1), nested = exited(1);
  said.message = "std::runtime_error: " + words;
  printed.stderr_tail = {words};
  // This is the last line of a nested ddprun.
  nested.stderr_tail = {
      "ddprun: error: not restarted: its error says that a restart would fail in "
      "the same way"};
  for (const WorkerEnd& end : {said, printed, nested})
    EXPECT_TRUE(budget.decide(end, kLong, std::nullopt, kStart).restart);
}

TEST(RestartBudget, AFinalCodeEndsTheJobWhateverIsLeft) {
  RestartBudget budget(9, {.final_codes = {{2, 2}, {64, 78}, {137, 137}}});
  EXPECT_TRUE(budget.decide(exited(1), kLong, std::nullopt, kStart).restart);
  const RestartBudget::Decision decision = budget.decide(exited(64), kLong, std::nullopt, kStart);
  EXPECT_FALSE(decision.restart);
  EXPECT_EQ(decision.why_not, "exit code 64 is one of --no-restart-on");
  EXPECT_FALSE(budget.decide(killed(9), kLong, std::nullopt, kStart).restart) << "128+9";
  // A lost node has no exit code of a worker: 68 is ddprun's own.
  EXPECT_TRUE(budget.decide({.kind = EndKind::kNodeLost}, kLong, std::nullopt, kStart).restart);
}

TEST(RestartBudget, AWorkerThatCannotBeStartedIsNotTriedAgain) {
  RestartBudget budget(9, {});
  EXPECT_FALSE(budget.decide({.kind = EndKind::kNotStarted, .code = 2}, kLong, std::nullopt, kStart)
                   .restart);
  EXPECT_EQ(budget.used(), 0);
}

TEST(RestartBudget, QuickFailuresInARowArePausedForLongerAndLonger) {
  RestartBudget budget(100, {});
  std::vector<Duration> pauses;
  for (int i = 0; i < 10; ++i)
    pauses.push_back(budget.decide(exited(1), seconds(1), std::nullopt, kStart).pause);
  EXPECT_EQ(pauses[0], Duration(0)) << "the first one is restarted at once";
  EXPECT_EQ(pauses[1], RestartBudget::kFirstPause);
  EXPECT_EQ(pauses[2], 2 * RestartBudget::kFirstPause);
  EXPECT_EQ(pauses[3], 4 * RestartBudget::kFirstPause);
  EXPECT_EQ(pauses[8], RestartBudget::kLongestPause);
  EXPECT_EQ(pauses[9], RestartBudget::kLongestPause);
  EXPECT_EQ(budget.decide(exited(1), RestartBudget::kQuick, std::nullopt, kStart).pause,
            Duration(0));
  EXPECT_EQ(budget.decide(exited(1), milliseconds(5), std::nullopt, kStart).pause, Duration(0))
      << "a new row";
}

TEST(RestartBudget, LostNodesAndGenerationsOfUnknownAgeAreNoQuickFailures) {
  RestartBudget budget(100, {});
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(budget.decide({.kind = EndKind::kNodeLost}, seconds(1), std::nullopt, kStart).pause,
              Duration(0));
    EXPECT_EQ(budget.decide(exited(1), std::nullopt, std::nullopt, kStart).pause, Duration(0));
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

// --- with --restart-on-progress ---

WorkerEnd at_step(std::int64_t step) {
  WorkerEnd end = exited(1);
  end.step = step;
  return end;
}

TEST(RestartOnProgress, AStepBeyondTheLastFailureMakesAllRestartsAvailableAgain) {
  RestartBudget budget(1, {.on_progress = true});
  EXPECT_TRUE(budget.decide(at_step(100), kLong, 100, kStart).restart);
  EXPECT_TRUE(budget.decide(at_step(150), kLong, 151, kStart).restart) << "151 is beyond 100";
  EXPECT_EQ(budget.used(), 2) << "of the whole job";
  EXPECT_EQ(budget.in_words(kStart), "2 (1 of 1 without progress)");
  const RestartBudget::Decision third = budget.decide(at_step(140), kLong, 150, kStart);
  EXPECT_FALSE(third.restart) << "150 is where it failed last, not beyond";
  EXPECT_EQ(third.why_not, "restarts used: 2 (1 of 1 without progress)");
}

TEST(RestartOnProgress, TheThirdFailureInARowAtOneStepEndsTheJob) {
  RestartBudget budget(9, {.on_progress = true});
  EXPECT_TRUE(budget.decide(at_step(7), kLong, 7, kStart).restart);
  EXPECT_TRUE(budget.decide(at_step(7), kLong, 8, kStart).restart);
  const RestartBudget::Decision third = budget.decide(at_step(7), kLong, 8, kStart);
  EXPECT_FALSE(third.restart);
  EXPECT_EQ(third.why_not, "failed 3 times in a row at step 7 (--restart-on-progress)");
}

TEST(RestartOnProgress, AnotherStepBetweenBreaksTheRow) {
  RestartBudget budget(9, {.on_progress = true});
  for (const std::int64_t step : {7, 7, 8, 7, 7}) {
    EXPECT_TRUE(budget.decide(at_step(step), kLong, step, kStart).restart) << step;
  }
}

TEST(RestartOnProgress, WhoReportsNoStepsHasAnOrdinaryBudget) {
  RestartBudget budget(4, {.on_progress = true});
  for (int i = 0; i < 4; ++i) {
    EXPECT_TRUE(budget.decide(exited(1), kLong, std::nullopt, kStart).restart);
  }
  EXPECT_FALSE(budget.decide(exited(1), kLong, std::nullopt, kStart).restart);
}

TEST(RestartOnProgress, ALostNodeWasAsFarAsTheOthers) {
  RestartBudget budget(9, {.on_progress = true});
  const WorkerEnd lost{.kind = EndKind::kNodeLost};
  EXPECT_TRUE(budget.decide(lost, kLong, 7, kStart).restart);
  EXPECT_TRUE(budget.decide(at_step(7), kLong, 7, kStart).restart);
  EXPECT_FALSE(budget.decide(lost, kLong, 7, kStart).restart);
}

TEST(RestartOnProgress, GoesOnInAnotherLifeOfTheService) {
  RestartBudget before(2, {.on_progress = true});
  before.decide(at_step(7), kLong, 7, kStart);
  before.decide(at_step(7), kLong, 7, kStart);
  RestartBudget after(2, {.on_progress = true});
  after.restore(before.used(), {}, before.strikes(), kStart);
  EXPECT_FALSE(after.decide(at_step(7), kLong, 7, kStart).restart);
  EXPECT_EQ(after.strikes().in_a_row, 3);
}

TEST(RestartOnProgress, WithoutItStepsMeanNothing) {
  RestartBudget budget(1, {});
  EXPECT_TRUE(budget.decide(at_step(1), kLong, 1, kStart).restart);
  EXPECT_FALSE(budget.decide(at_step(5), kLong, 5, kStart).restart);
}

}  // namespace
}  // namespace ddprun
