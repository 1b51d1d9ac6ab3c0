#include "launcher/agent/gpu_table.h"

#include <gtest/gtest.h>

namespace ddprun {
namespace {

const std::vector<PresentGpu> kGpus{{.uuid = "GPU-1b", .bus_id = "0000:1b:00.0"},
                                    {.uuid = "GPU-9d", .bus_id = "0000:9d:00.0"},
                                    {.uuid = "GPU-aa", .bus_id = "0000:aa:00.0"}};
const std::vector<GpuUse> kUse{{.percent = 10, .memory_bytes = 100},
                               {.percent = 20, .memory_bytes = 200},
                               {.percent = 30, .memory_bytes = std::nullopt}};

TEST(GpuTable, AWorkerHasTheGpuOfItsLocalRankAmongThoseThatItSees) {
  EXPECT_EQ(use_by_worker({{}, {}}, kGpus, kUse), (std::vector<GpuUse>{kUse[0], kUse[1]}));
  EXPECT_EQ(use_by_worker({"2,GPU-1b", "2,GPU-1b"}, kGpus, kUse),
            (std::vector<GpuUse>{kUse[2], kUse[0]}));
}

TEST(GpuTable, AWorkerThatSeesOneGpuHasThatOne) {
  EXPECT_EQ(use_by_worker({"1", "0", "GPU-aa"}, kGpus, kUse),
            (std::vector<GpuUse>{kUse[1], kUse[0], kUse[2]}));
  EXPECT_EQ(use_by_worker({"1", "1"}, kGpus, kUse), (std::vector<GpuUse>{kUse[1], kUse[1]}));
}

TEST(GpuTable, AWorkerWithoutAKnownGpuHasNone) {
  const std::vector<GpuUse> none(2);
  EXPECT_EQ(use_by_worker({"", ""}, kGpus, kUse), none);
  EXPECT_EQ(use_by_worker({"MIG-7", "MIG-8"}, kGpus, kUse), none);
  EXPECT_EQ(use_by_worker({{}, {}}, {}, {}), none);
  EXPECT_EQ(use_by_worker({{}, {}}, kGpus, {}), none);
  EXPECT_EQ(use_by_worker({{}, {}, {}, {}}, kGpus, kUse)[3], GpuUse());
}

}  // namespace
}  // namespace ddprun
