#include "worker_lib/tensorboard/core/histogram.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

namespace ddprun {
namespace {

using testing::ElementsAre;

HistogramCounts counts_of(const std::vector<double>& values) { return count_in_buckets(values); }

TEST(Histogram, HasTheNumbersOfItsValues) {
  const HistogramCounts counts = counts_of({3, -1, 2});
  EXPECT_EQ(counts.min, -1);
  EXPECT_EQ(counts.max, 3);
  EXPECT_EQ(counts.count, 3);
  EXPECT_EQ(counts.sum, 4);
  EXPECT_EQ(counts.sum_squares, 14);
  ASSERT_EQ(counts.limits.size(), counts.counts.size());
  EXPECT_EQ(std::accumulate(counts.counts.begin(), counts.counts.end(), 0.0), 3);
}

TEST(Histogram, TheBucketsReachFromTheLowestToTheHighestValue) {
  // 0 is a limit; the next one is 1e-12.
  const HistogramCounts zeros = counts_of({0, 0});
  EXPECT_THAT(zeros.limits, ElementsAre(0, 1e-12));
  EXPECT_THAT(zeros.counts, ElementsAre(0, 2));
  const HistogramCounts both = counts_of({-1e-12, 0});
  EXPECT_THAT(both.limits, ElementsAre(-1e-12, 0, 1e-12));
  EXPECT_THAT(both.counts, ElementsAre(0, 1, 1));
  const HistogramCounts one = counts_of({1});
  ASSERT_EQ(one.limits.size(), 2U);
  EXPECT_LE(one.limits[0], 1);
  EXPECT_GT(one.limits[1], 1);
  EXPECT_NEAR(one.limits[1] / one.limits[0], 1.1, 1e-12);
}

TEST(Histogram, ValuesBeyondTheLimitsCountInTheOutermostBuckets) {
  const HistogramCounts counts = counts_of({-1e30, 1e30});
  EXPECT_EQ(counts.counts[1], 1);
  EXPECT_EQ(counts.counts.back(), 1);
  EXPECT_EQ(counts.max, 1e30);
}

TEST(Histogram, WhatIsNotFiniteIsLeftOut) {
  const double nan = std::nan("");
  const double infinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(counts_of({nan, 1, infinity, -infinity}).count, 1);
  EXPECT_EQ(counts_of({nan}).count, 0);
  EXPECT_TRUE(counts_of({nan}).limits.empty());
  EXPECT_EQ(counts_of({}).count, 0);
  EXPECT_EQ(count_in_buckets(std::vector<float>{0.5F, 2}).sum, 2.5);
}

}  // namespace
}  // namespace ddprun
