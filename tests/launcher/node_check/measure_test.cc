#include "launcher/node_check/measure.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/support/sanitized.h"
#include "tests/support/temporary_directory.h"

namespace ddprun {
namespace {

using testing::HasSubstr;

// Limits that a healthy machine keeps. A sanitizer makes everything many times slower.
NodeLimits limits_of_this_build() {
  NodeLimits limits;
  const int slower = testing_support::kSanitized ? 100 : 1;
  limits.core *= slower;
  limits.memory /= slower;
  limits.loopback /= slower;
  return limits;
}

TEST(MeasureNode, ComputesTheDigestThatIsKnown) { EXPECT_EQ(arithmetic_digest(), kKnownDigest); }

TEST(MeasureNode, FindsThisMachineFitAndLeavesNoFile) {
  const testing_support::TemporaryDirectory directory;
  NodeStep step{""};
  const NodeMeasurements measured = measure_node(directory.path(), limits_of_this_build(), step);
  EXPECT_EQ(fault_of(measured, limits_of_this_build()), "");
  EXPECT_GT(measured.memory, 0);
  EXPECT_GT(measured.loopback, 0);
  EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
}

TEST(MeasureNode, SaysWhyTheDiskCannotBeWritten) {
  NodeStep step{""};
  const NodeMeasurements measured = measure_node("/proc/no-such", limits_of_this_build(), step);
  EXPECT_THAT(fault_of(measured, limits_of_this_build()), HasSubstr("disk: open /proc/no-such/"));
}

TEST(MeasureNode, RepeatsAMeasurementThatIsNotWithinTheLimit) {
  NodeLimits limits = limits_of_this_build();
  limits.memory = 1e15;
  NodeStep step{""};
  const NodeMeasurements measured = measure_node("", limits, step);
  EXPECT_THAT(fault_of(measured, limits), HasSubstr("(limit 1000000000 MB/s)"));
  EXPECT_EQ(measured.disk_error, "") << "no directory was given";
}

}  // namespace
}  // namespace ddprun
