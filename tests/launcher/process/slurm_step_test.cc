#include "launcher/process/slurm_step.h"

#include <gtest/gtest.h>

namespace ddprun {
namespace {

// The paths are those of Slurm's plugin cgroup/v2 and cgroup/v1.
TEST(SignalsWholeStep, NotIfTheStepHasAControlGroup) {
  EXPECT_FALSE(
      signals_whole_step("0::/system.slice/slurmstepd.scope/job_812/step_0/user/task_0\n"));
  EXPECT_FALSE(signals_whole_step("5:cpuset:/slurm/uid_1000/job_812/step_0\n1:name=systemd:/\n"));
  EXPECT_TRUE(signals_whole_step("0::/system.slice/slurmd.service\n"));
  EXPECT_TRUE(signals_whole_step(""));
}

}  // namespace
}  // namespace ddprun
