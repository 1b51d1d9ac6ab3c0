#include "ddprun/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/expect_dist_error.h"
#include "tests/support/thread_world.h"

namespace ddprun {
namespace {

using testing::HasSubstr;
using testing_support::ThreadWorld;

TEST(MetricAccumulator, WeighsByWhatEveryRankHasCounted) {
  ThreadWorld(3).run([](ProcessGroup& group) {
    MetricAccumulator metrics;
    // Ranks 0 and 1 have 4 and 1 samples, rank 2 has none.
    if (group.rank() == 0) metrics.add_mean("loss", 0.5, 3);
    if (group.rank() == 0) metrics.add_mean("loss", 2.5, 1);
    if (group.rank() == 1) metrics.add("loss", 6);
    if (group.rank() == 2) metrics.add("seconds", 0, 0);
    const MetricAccumulator all = metrics.merged(group);
    EXPECT_EQ(all.mean("loss"), 2.0);
    EXPECT_EQ(all.sum("loss"), 10.0);
    EXPECT_EQ(all.count("loss"), 5.0);
    EXPECT_TRUE(std::isnan(all.mean("seconds")));
    EXPECT_EQ(metrics.totals().size(), 1u);  // unchanged
  });
}

TEST(MetricAccumulator, GivesTheSameBitsOnEveryRankForAnyNumbers) {
  ThreadWorld(4).run([](ProcessGroup& group) {
    MetricAccumulator metrics;
    metrics.add("x", 0.1 + 1e15 * (group.rank() % 2) - 1e15 * (group.rank() == 3), 0.3);
    metrics.add("infinite", INFINITY);
    metrics.add("nan", std::nan(""));
    const MetricAccumulator all = metrics.merged(group);
    EXPECT_EQ(all.sum("x"), 0.1 + (0.1 + 1e15) + 0.1 + (0.1 + 1e15 - 1e15));
    EXPECT_EQ(all.sum("infinite"), INFINITY);
    EXPECT_TRUE(std::isnan(all.sum("nan")));
  });
}

TEST(MetricAccumulator, RefusesWhatItCannotKnow) {
  MetricAccumulator metrics;
  EXPECT_DIST_ERROR(metrics.mean("loss"), DistError::Kind::kInvalidArgument,
                    HasSubstr("nothing was added as 'loss'"));
  EXPECT_DIST_ERROR(metrics.add("loss", 1, -1), DistError::Kind::kInvalidArgument,
                    HasSubstr("a count is at least 0"));
  EXPECT_DIST_ERROR(metrics.add("loss", 1, std::nan("")), DistError::Kind::kInvalidArgument,
                    HasSubstr("a count is at least 0"));
}

}  // namespace
}  // namespace ddprun
