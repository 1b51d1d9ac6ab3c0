#include "worker_lib/ddp/core/bucket_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

namespace ddprun {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

std::vector<std::size_t> in_order(std::size_t count) {
  std::vector<std::size_t> order(count);
  std::iota(order.begin(), order.end(), 0);
  return order;
}

std::vector<std::vector<std::size_t>> gradients_of(const std::vector<BucketLayout>& buckets) {
  std::vector<std::vector<std::size_t>> result;
  for (const BucketLayout& bucket : buckets) {
    result.emplace_back();
    for (const BucketSlot& slot : bucket.slots) result.back().push_back(slot.gradient);
  }
  return result;
}

TEST(BucketPlan, ClosesABucketAfterTheGradientThatReachesTheCap) {
  const std::vector<PlannedGradient> gradients(6, {.bytes = 100});
  const auto buckets = plan_buckets(gradients, in_order(6), {.first_bytes = 150, .bytes = 300});
  EXPECT_THAT(gradients_of(buckets),
              ElementsAre(ElementsAre(0, 1), ElementsAre(2, 3, 4), ElementsAre(5)));
}

// Six 600x600 Linears, from the last layer on, bias before weight. PyTorch 2.11 reports these
// buckets after its rebuild.
TEST(BucketPlan, GivesPyTorchsBucketsForSixLinears) {
  std::vector<PlannedGradient> gradients;
  for (int layer = 0; layer < 6; ++layer) {
    gradients.push_back({.bytes = 600 * 600 * 4});
    gradients.push_back({.bytes = 600 * 4});
  }
  std::vector<std::size_t> order = in_order(12);
  std::reverse(order.begin(), order.end());
  const auto payloads = [&](BucketCaps caps) {
    std::vector<std::uint64_t> bytes;
    for (const BucketLayout& bucket : plan_buckets(gradients, order, caps)) {
      bytes.push_back(0);
      for (const BucketSlot& slot : bucket.slots) bytes.back() += gradients[slot.gradient].bytes;
    }
    return bytes;
  };
  EXPECT_THAT(payloads({.first_bytes = 1 << 20, .bytes = 25 << 20}), ElementsAre(1442400, 7212000));
  EXPECT_THAT(payloads({.first_bytes = 3 << 20, .bytes = 3 << 20}), ElementsAre(4327200, 4327200));
}

TEST(BucketPlan, NeverMixesKindsAndOrdersBucketsByTheirLastGradient) {
  const std::vector<PlannedGradient> gradients{
      {.bytes = 8, .kind = 1}, {.bytes = 8, .kind = 2}, {.bytes = 8, .kind = 2},
      {.bytes = 8, .kind = 1}, {.bytes = 8, .kind = 2},
  };
  const auto buckets = plan_buckets(gradients, in_order(5), {.first_bytes = 16, .bytes = 100});
  EXPECT_THAT(gradients_of(buckets),
              ElementsAre(ElementsAre(1, 2), ElementsAre(0, 3), ElementsAre(4)));
}

TEST(BucketPlan, AlignsEverySlotAndCountsNoPaddingAgainstTheCap) {
  const std::vector<PlannedGradient> gradients(4, {.bytes = 4});
  const auto buckets = plan_buckets(gradients, in_order(4), {.first_bytes = 16, .bytes = 16});
  ASSERT_EQ(buckets.size(), 1u);
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(buckets[0].slots[i].offset_bytes, i * 64);
  EXPECT_EQ(buckets[0].bytes, 3 * 64 + 4);
}

TEST(BucketPlan, KeepsAGradientOfNoElements) {
  const std::vector<PlannedGradient> gradients{{.bytes = 0}, {.bytes = 4}};
  const auto buckets = plan_buckets(gradients, in_order(2), {.first_bytes = 100, .bytes = 100});
  EXPECT_THAT(gradients_of(buckets), ElementsAre(ElementsAre(0, 1)));
}

class ReductionPassTest : public testing::Test {
 protected:
  // Three buckets of two gradients each.
  const std::vector<PlannedGradient> gradients_{6, {.bytes = 50}};
  const std::vector<BucketLayout> buckets_ =
      plan_buckets(gradients_, in_order(6), {.first_bytes = 100, .bytes = 100});
  ReductionPass pass_{buckets_, 6};

  std::vector<int> due() {
    std::vector<int> result;
    while (const auto b = pass_.take_due()) result.push_back(static_cast<int>(*b));
    return result;
  }
  std::vector<int> remaining() {
    std::vector<int> result;
    while (const auto b = pass_.take_remaining()) result.push_back(static_cast<int>(*b));
    return result;
  }
};

TEST_F(ReductionPassTest, ABucketIsDueWhenItsLastGradientIsReady) {
  pass_.arrive(1);
  EXPECT_THAT(due(), IsEmpty());
  pass_.arrive(0);
  EXPECT_THAT(due(), ElementsAre(0));
}

TEST_F(ReductionPassTest, AFullBucketWaitsForThoseBeforeIt) {
  for (const std::size_t gradient : {2, 3, 0}) pass_.arrive(gradient);
  EXPECT_THAT(due(), IsEmpty());
  pass_.arrive(1);
  EXPECT_THAT(due(), ElementsAre(0, 1));
}

TEST_F(ReductionPassTest, TheLastBucketIsHeldBackUntilTheEnd) {
  for (const std::size_t gradient : {0, 1, 2, 3, 4, 5}) pass_.arrive(gradient);
  EXPECT_THAT(due(), ElementsAre(0, 1));
  EXPECT_THAT(pass_.missing(), IsEmpty());
  EXPECT_THAT(remaining(), ElementsAre(2));
}

TEST_F(ReductionPassTest, AnIncompletePassStillSendsEveryBucketOnceAndInOrder) {
  for (const std::size_t gradient : {4, 5, 1, 0, 3}) pass_.arrive(gradient);
  EXPECT_THAT(due(), ElementsAre(0));
  EXPECT_THAT(pass_.missing(), ElementsAre(2));
  EXPECT_THAT(remaining(), ElementsAre(1, 2));
  EXPECT_THAT(remaining(), IsEmpty());
}

TEST_F(ReductionPassTest, AGradientDoesNotComeTwice) {
  EXPECT_TRUE(pass_.arrive(0));
  EXPECT_FALSE(pass_.arrive(0));
  EXPECT_THAT(pass_.ready_order(), ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_THAT(due(), IsEmpty());
}

TEST_F(ReductionPassTest, ABucketDoesNotWaitForWhatIsExcused) {
  pass_.mark_unused(0);
  pass_.mark_unused(0);
  EXPECT_THAT(due(), IsEmpty());
  pass_.arrive(1);
  EXPECT_THAT(due(), ElementsAre(0));
  for (const std::size_t gradient : {2, 3, 4}) pass_.arrive(gradient);
  EXPECT_THAT(pass_.missing(), ElementsAre(5));
  pass_.mark_unused(5);
  EXPECT_THAT(pass_.missing(), IsEmpty());
  EXPECT_THAT(pass_.arrivals(), ElementsAre(0, 1, 1, 1, 1, 0));
  EXPECT_THAT(pass_.ready_order(), ElementsAre(1, 2, 3, 4, 0, 5));
}

TEST_F(ReductionPassTest, WhatWasExcusedMayComeUntilItsBucketHasGone) {
  for (const std::size_t gradient : {0, 2}) pass_.mark_unused(gradient);
  EXPECT_TRUE(pass_.arrive(0));
  EXPECT_FALSE(pass_.arrive(0));
  pass_.arrive(1);
  EXPECT_THAT(due(), ElementsAre(0));
  pass_.arrive(3);
  EXPECT_THAT(due(), ElementsAre(1));
  EXPECT_FALSE(pass_.arrive(2));
  EXPECT_EQ(pass_.arrivals()[2], 0);
}

TEST_F(ReductionPassTest, APassThatOnlyCountsSaysHowOftenEachCame) {
  pass_.only_count();
  for (const std::size_t gradient : {5, 4, 5, 3, 2, 1, 5}) EXPECT_TRUE(pass_.arrive(gradient));
  EXPECT_THAT(due(), IsEmpty());
  EXPECT_THAT(pass_.arrivals(), ElementsAre(0, 1, 1, 1, 1, 3));
  EXPECT_THAT(pass_.ready_order(), ElementsAre(4, 3, 2, 1, 5, 0));
  EXPECT_THAT(remaining(), ElementsAre(0, 1, 2));
}

TEST_F(ReductionPassTest, ABucketWaitsForEveryArrivalThatIsExpected) {
  const std::vector<int> expected{2, 0, 1, 1, 1, 1};
  ReductionPass pass(buckets_, 6, expected);
  EXPECT_TRUE(pass.arrive(0));
  EXPECT_EQ(pass.take_due(), std::nullopt);
  EXPECT_THAT(pass.missing(), ElementsAre(0, 2, 3, 4, 5));
  EXPECT_TRUE(pass.arrive(0));
  EXPECT_EQ(pass.take_due(), 0u);
  EXPECT_FALSE(pass.arrive(0));
  EXPECT_FALSE(pass.arrive(1));
}

TEST_F(ReductionPassTest, CountsWhatLiesInNoBucket) {
  const std::vector<std::size_t> order{0, 2};
  const auto buckets = plan_buckets(gradients_, order, {.first_bytes = 50, .bytes = 50});
  ReductionPass pass(buckets, 6);
  for (const std::size_t gradient : {1, 0, 3, 2, 4}) EXPECT_TRUE(pass.arrive(gradient));
  EXPECT_FALSE(pass.arrive(3));
  EXPECT_EQ(pass.take_due(), 0u);
  EXPECT_THAT(pass.missing(), ElementsAre(5));
  EXPECT_THAT(pass.ready_order(), ElementsAre(1, 0, 3, 2, 4, 5));
}

}  // namespace
}  // namespace ddprun
