#include "launcher/node_check/core/gpu_report.h"

#include <gtest/gtest.h>

namespace ddprun {
namespace {

constexpr double kLimit = 10e9;
constexpr const char* kMissing = "no result within 30 s";

std::string fault_in(const std::string& report) {
  return fault_in(read_gpu_report(report), kMissing);
}

std::string two_gpus() { return gpu_names_line({"0000:1b:00.0", "0000:9d:00.0"}); }

TEST(GpuMeasurement, OfAHealthyGpuHasNoFault) {
  EXPECT_EQ(fault_of({.bytes_per_s = kLimit}, kLimit), "");
}

TEST(GpuMeasurement, EachFaultIsTold) {
  EXPECT_EQ(fault_of({.error = "cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY"}, kLimit),
            "cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY");
  EXPECT_EQ(fault_of({.wrong_words = 2, .bytes_per_s = kLimit}, kLimit),
            "memory: 2 words are not what was written");
  EXPECT_EQ(fault_of({.digest = 7, .bytes_per_s = kLimit}, kLimit),
            "a known product gave 7 instead of " + std::to_string(kKnownProduct));
  EXPECT_EQ(fault_of({.bytes_per_s = 1}, 0), "") << "speeds are measured, and have no limit";
  EXPECT_EQ(fault_of({.bytes_per_s = 3.1e9}, kLimit), "memory: 3100 MB/s (limit 10000 MB/s)");
}

TEST(GpuReport, OfFitGpusOrNoneHasNoFault) {
  EXPECT_EQ(fault_in(gpu_names_line({})), "");
  EXPECT_EQ(fault_in(two_gpus() + gpu_fault_line(1, "") + gpu_fault_line(0, "")), "");
}

TEST(GpuReport, NamesTheGpuThatIsNotFit) {
  EXPECT_EQ(fault_in(two_gpus() + gpu_fault_line(1, "memory: bad") + gpu_fault_line(0, "")),
            "gpu 1 (0000:9d:00.0): memory: bad");
  EXPECT_EQ(fault_in(two_gpus() + gpu_fault_line(1, "b") + gpu_fault_line(0, "a")),
            "gpu 0 (0000:1b:00.0): a; gpu 1 (0000:9d:00.0): b");
}

TEST(GpuReport, AGpuWithoutAResultIsNotFit) {
  EXPECT_EQ(fault_in(two_gpus() + gpu_fault_line(0, "")),
            "gpu 1 (0000:9d:00.0): no result within 30 s");
  EXPECT_EQ(fault_in(two_gpus() + gpu_fault_line(0, "") + "1 "),
            "gpu 1 (0000:9d:00.0): no result within 30 s")
      << "a line that was cut off";
  EXPECT_EQ(fault_in(""), "gpu: no result within 30 s");
}

TEST(GpuReport, TellsOfADriverThatDoesNotWork) {
  EXPECT_EQ(fault_in(driver_fault_line("cuInit: error 999")), "gpu: cuInit: error 999");
}

TEST(GpuReport, SpeedsAreThoseOfTheSlowestGpuThatHasSome) {
  const auto speeds = [](const std::string& report) {
    return speeds_in(read_gpu_report(report), kMissing);
  };
  EXPECT_EQ(speeds(gpu_names_line({})), GpuSpeeds{});
  EXPECT_EQ(speeds(two_gpus() + "speed 0 x 1\nspeed x 1 1\n" + gpu_fault_line(1, "") +
                   gpu_fault_line(0, "")),
            GpuSpeeds{.gpus = 2});
  const std::string first = gpu_speed_line(0, {.bytes_per_s = 2e12, .multiplies_per_s = 3e11});
  EXPECT_EQ(speeds(two_gpus() + gpu_speed_line(1, {.bytes_per_s = 1e12, .multiplies_per_s = 4e11}) +
                   gpu_fault_line(1, "") + first + gpu_fault_line(0, "")),
            (GpuSpeeds{2, 1e12, 3e11, ""}));
  EXPECT_EQ(speeds(two_gpus() + first + gpu_fault_line(0, "") + gpu_speed_line(1, {}) +
                   gpu_fault_line(1, "bad")),
            (GpuSpeeds{2, 2e12, 3e11, "gpu 1 (0000:9d:00.0): bad"}));
}

TEST(GpuReport, WhatALibraryPrintsIsNotPartOfIt) {
  const std::string noise = "\nhello\n0\n99999999999999999999 x\n-1 x\n7 x\n";
  EXPECT_EQ(fault_in(noise + two_gpus() + noise + gpu_fault_line(0, "") + gpu_fault_line(1, "")),
            "");
}

TEST(GpuReport, GpusWithoutAResultAreCheckedAgain) {
  const auto missing = [](const std::string& report) {
    return gpus_without_result(read_gpu_report(report));
  };
  EXPECT_EQ(missing(two_gpus() + "0 "), (std::vector<int>{0, 1}));
  EXPECT_EQ(missing(two_gpus() + gpu_fault_line(0, "bad")), std::vector<int>{1});
  EXPECT_EQ(missing(two_gpus() + gpu_fault_line(1, "") + gpu_fault_line(0, "")),
            std::vector<int>{});
  EXPECT_EQ(missing(""), std::vector<int>{}) << "the driver crashes before it has GPUs";
  EXPECT_EQ(missing(driver_fault_line("cuInit: error 999")), std::vector<int>{});
}

}  // namespace
}  // namespace ddprun
