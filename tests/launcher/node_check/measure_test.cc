#include "launcher/node_check/measure.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/support/temporary_directory.h"

namespace ddprun {
namespace {

using testing::HasSubstr;

TEST(MeasureNode, ComputesTheDigestThatIsKnown) { EXPECT_EQ(arithmetic_digest(), kKnownDigest); }

TEST(MeasureNode, FindsThisMachineFitAndLeavesNoFile) {
  const testing_support::TemporaryDirectory directory;
  NodeStep step{""};
  const NodeMeasurements measured = measure_node(directory.path(), NodeLimits(), step);
  EXPECT_EQ(fault_of(measured, NodeLimits()), "");
  EXPECT_GT(measured.memory, 0);
  EXPECT_GT(measured.loopback, 0);
  EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
}

TEST(MeasureNode, SaysWhyTheDiskCannotBeWritten) {
  NodeStep step{""};
  const NodeMeasurements measured = measure_node("/proc/no-such", NodeLimits(), step);
  EXPECT_THAT(fault_of(measured, NodeLimits()), HasSubstr("disk: open /proc/no-such/"));
}

TEST(MeasureNode, RepeatsAMeasurementThatIsNotWithinTheLimit) {
  NodeLimits limits;
  limits.memory = 1e15;
  NodeStep step{""};
  const NodeMeasurements measured = measure_node("", limits, step);
  EXPECT_THAT(fault_of(measured, limits), HasSubstr("(limit 1000000000 MB/s)"));
  EXPECT_EQ(measured.disk_error, "") << "no directory was given";
}

}  // namespace
}  // namespace ddprun
