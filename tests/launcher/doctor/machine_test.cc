#include "launcher/doctor/machine.h"

#include <gtest/gtest.h>

#include "tests/support/temporary_directory.h"

namespace ddprun {
namespace {

// DoctorCgroups: a file system with the cgroups that a test needs.
class DoctorCgroups : public testing::Test {
 protected:
  CgroupFacts look() const { return read_cgroup_limits(root_.path()); }

  const testing_support::TemporaryDirectory root_;
};

TEST_F(DoctorCgroups, TakesTheNarrowestLimitOnTheWayUp) {
  root_.write("/proc/self/cgroup", "0::/a/b\n");
  root_.write("/proc/self/mountinfo",
              "30 23 0:26 / /cg rw,relatime shared:4 - cgroup2 cgroup2 rw\n");
  root_.write("/cg/a/b/memory.max", "max\n");
  root_.write("/cg/a/memory.max", "4294967296\n");
  root_.write("/cg/a/b/cpu.max", "150000 100000\n");
  root_.write("/cg/a/cpu.max", "max 100000\n");
  root_.write("/cg/a/b/pids.max", "500\n");
  root_.write("/cg/a/pids.max", "100\n");
  root_.write("/cg/a/pids.current", "40\n");
  const CgroupFacts facts = look();
  EXPECT_EQ(facts.memory_max, 4294967296U);
  EXPECT_EQ(facts.cpus, 1.5);
  EXPECT_EQ(facts.pids_max, 100U);
  EXPECT_EQ(facts.pids_now, 40U);
}

TEST_F(DoctorCgroups, ReadsLimitsOfTheFirstVersion) {
  root_.write("/proc/self/cgroup", "4:memory:/job\n2:cpu,cpuacct:/job\n0::/\n");
  root_.write("/proc/self/mountinfo",
              "31 23 0:27 / /cg/memory rw - cgroup cgroup rw,memory\n"
              "32 23 0:28 / /cg/cpu rw - cgroup cgroup rw,cpu,cpuacct\n");
  root_.write("/cg/memory/job/memory.limit_in_bytes", "1048576\n");
  root_.write("/cg/memory/memory.limit_in_bytes", "9223372036854771712\n");  // means: no limit
  root_.write("/cg/cpu/job/cpu.cfs_quota_us", "50000\n");
  root_.write("/cg/cpu/job/cpu.cfs_period_us", "100000\n");
  root_.write("/cg/cpu/cpu.cfs_quota_us", "-1\n");
  root_.write("/cg/cpu/cpu.cfs_period_us", "100000\n");
  const CgroupFacts facts = look();
  EXPECT_EQ(facts.memory_max, 1048576U);
  EXPECT_EQ(facts.cpus, 0.5);
  EXPECT_FALSE(facts.pids_max);
}

// In this container, its cgroup is mounted at the mount point itself. /proc/self/cgroup has the
// path that the cgroup has outside of the container.
TEST_F(DoctorCgroups, FindsOursWhereAPartOfTheHierarchyIsMounted) {
  root_.write("/proc/self/cgroup", "0::/docker/abc\n");
  root_.write("/proc/self/mountinfo", "30 23 0:26 /docker/abc /cg ro - cgroup2 cgroup2 ro\n");
  root_.write("/cg/memory.max", "1000\n");
  const CgroupFacts facts = look();
  EXPECT_EQ(facts.memory_max, 1000U);
}

TEST(DoctorMachine, SeesThisOne) {
  const MachineFacts machine = look_at_machine();
  EXPECT_GE(machine.usable_cores, 1);
  EXPECT_LE(machine.usable_cores, machine.online_cores);
  EXPECT_GT(machine.memory, machine.memory_available);
  EXPECT_GT(machine.memory_available, 0U);
  const LimitFacts limits = look_at_limits();
  EXPECT_GE(limits.own_processes, 1U) << "this one";
  EXPECT_LE(limits.open_files.soft, limits.open_files.hard);
}

}  // namespace
}  // namespace ddprun
