#include "base/gpu_speeds.h"

#include <gtest/gtest.h>

namespace ddprun {
namespace {

TEST(GpuSpeeds, AnythingElseIsNotTheLine) {
  for (const char* text : {"", "\n", "2 1 1 \n\n\nx", "2 1 1", "2 1 1 fault", "2 1\n", "2 1 1\n",
                           "x 1 1 \n", "2 x 1 \n", "2 1 x \n"})
    EXPECT_EQ(read_gpu_speeds(text), std::nullopt) << text;
}

TEST(GpuSpeeds, AreReadAsTheyWereWritten) {
  const GpuSpeeds none, fit{8, 2.1e12 / 3, 3e11, ""};
  const GpuSpeeds bad{2, 1e12, 0, "gpu 1 (0000:9d:00.0): memory: 2 words"};
  for (const GpuSpeeds& speeds : {none, fit, bad})
    EXPECT_EQ(read_gpu_speeds(gpu_speeds_line(speeds)), speeds) << gpu_speeds_line(speeds);
}

}  // namespace
}  // namespace ddprun
