#include "launcher/cluster/core/requeue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ddprun {
namespace {

using testing::HasSubstr;

TEST(DecideRequeue, NotMoreOftenThanTheUserAllows) {
  EXPECT_THAT(decide_requeue({.most = 0, .step = 5}).why_not,
              HasSubstr("requeued 0 times, of --requeue=0"));
  EXPECT_EQ(decide_requeue({.most = 2, .requeues = 1, .step = 5}).why_not, "");
  EXPECT_THAT(decide_requeue({.most = 2, .requeues = 2, .step = 5}).why_not,
              HasSubstr("requeued 2 times, of --requeue=2"));
  EXPECT_NE(decide_requeue({.most = 2, .requeues = 7, .step = 5}).why_not, "");
}

TEST(DecideRequeue, NotAfterTwoLivesWithoutProgress) {
  RequeueDecision decision = decide_requeue({.most = 9, .step = 43});
  EXPECT_EQ(decision.why_not, "");
  EXPECT_EQ(decision.comment, "ddprun: step 43");
  decision = decide_requeue({.most = 9, .requeues = 1, .step = 43, .comment = decision.comment});
  EXPECT_EQ(decision.why_not, "");
  EXPECT_EQ(decision.comment, "ddprun: step 43, 1 without progress");
  decision = decide_requeue({.most = 9, .requeues = 2, .step = 40, .comment = decision.comment});
  EXPECT_THAT(decision.why_not, HasSubstr("last 2 lives did not get past step 43"));
}

TEST(DecideRequeue, ProgressCountsAnew) {
  const RequeueDecision decision = decide_requeue(
      {.most = 9, .requeues = 2, .step = 44, .comment = "ddprun: step 43, 1 without progress"});
  EXPECT_EQ(decision.why_not, "");
  EXPECT_EQ(decision.comment, "ddprun: step 44");
}

TEST(DecideRequeue, KeepsTheUsersComment) {
  RequeueDecision decision = decide_requeue({.most = 9, .step = 1, .comment = "for the paper"});
  EXPECT_EQ(decision.comment, "for the paper ddprun: step 1");
  decision = decide_requeue({.most = 9, .step = 1, .comment = decision.comment});
  EXPECT_EQ(decision.comment, "for the paper ddprun: step 1, 1 without progress");
  decision = decide_requeue({.most = 9, .step = 2, .comment = decision.comment});
  EXPECT_EQ(decision.comment, "for the paper ddprun: step 2");
}

TEST(DecideRequeue, WithoutStepsOnlyTheNumberCounts) {
  const RequeueDecision decision = decide_requeue({.most = 9, .requeues = 3, .comment = "mine"});
  EXPECT_EQ(decision.why_not, "");
  EXPECT_EQ(decision.comment, "mine");
}

// It hangs while it loads its data.
TEST(DecideRequeue, ALifeWithoutAStepAfterOneWithAStepIsWithoutProgress) {
  RequeueDecision decision =
      decide_requeue({.most = 9, .requeues = 1, .comment = "mine ddprun: step 43"});
  EXPECT_EQ(decision.why_not, "");
  EXPECT_EQ(decision.comment, "mine ddprun: step 43, 1 without progress");
  decision = decide_requeue({.most = 9, .requeues = 2, .comment = decision.comment});
  EXPECT_THAT(decision.why_not, HasSubstr("last 2 lives did not get past step 43"));
}

TEST(DecideRequeue, ANodeWithoutWorkersDoesNotKnowTheStep) {
  const RequeueDecision decision =
      decide_requeue({.most = 9,
                      .requeues = 2,
                      .had_workers = false,
                      .comment = "ddprun: step 43, 1 without progress"});
  EXPECT_EQ(decision.why_not, "");
  EXPECT_EQ(decision.comment, "ddprun: step 43, 1 without progress");
}

TEST(DecideRequeue, AMarkThatWasEditedCountsAsNone) {
  const RequeueDecision decision =
      decide_requeue({.most = 9, .step = 7, .comment = "ddprun: step many, x without progress"});
  EXPECT_EQ(decision.why_not, "");
  EXPECT_EQ(decision.comment, "ddprun: step 7");
}

}  // namespace
}  // namespace ddprun
