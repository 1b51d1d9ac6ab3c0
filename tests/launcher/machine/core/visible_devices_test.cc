#include "launcher/machine/core/visible_devices.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ddprun {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

const std::vector<PresentGpu> kFour{{"GPU-aa11", "0000:10:00.0", "H200"},
                                    {"GPU-bb22", "0000:20:00.0", "H200"},
                                    {"GPU-cc33", "0000:30:00.0", "H200"},
                                    {"GPU-dd44", "0000:40:00.0", "H200"}};

std::vector<std::string> seen(const std::optional<std::string>& visible) {
  std::vector<std::string> texts;
  for (const VisibleGpu& gpu : visible_gpus(visible, kFour)) {
    texts.push_back(gpu.name + " " + gpu.bus_id.substr(0, 7));
  }
  return texts;
}

TEST(VisibleDevices, WithoutTheVariableAllAreSeen) {
  EXPECT_THAT(seen(std::nullopt), ElementsAre("0 0000:10", "1 0000:20", "2 0000:30", "3 0000:40"));
}

TEST(VisibleDevices, AreInTheOrderOfTheVariable) {
  EXPECT_THAT(seen("3,1"), ElementsAre("3 0000:40", "1 0000:20"));
  EXPECT_THAT(seen("GPU-cc33, GPU-a"), ElementsAre("GPU-cc33 0000:30", "GPU-a 0000:10"));
}

TEST(VisibleDevices, EndWithTheFirstThatCannotBeMeant) {
  EXPECT_THAT(seen(""), IsEmpty());
  EXPECT_THAT(seen("-1"), IsEmpty());
  EXPECT_THAT(seen("2,-1,3"), ElementsAre("2 0000:30"));
  EXPECT_THAT(seen("2,4,3"), ElementsAre("2 0000:30"));
  EXPECT_THAT(seen("GPU-x,1"), IsEmpty());
  EXPECT_THAT(visible_gpus("0,1", {}), IsEmpty());
}

TEST(VisibleDevices, OfAPartOfAGpuThePlaceIsNotKnown) {
  EXPECT_THAT(seen("MIG-1234"), ElementsAre("MIG-1234 "));
}

TEST(VisibleDevices, EachWorkerHasOne) {
  EXPECT_THAT(*devices_of(std::nullopt, 2, 0), ElementsAre("0", "1"));
  EXPECT_THAT(*devices_of(std::nullopt, 2, 8), ElementsAre("0", "1"));
  EXPECT_THAT(*devices_of("3", 1, 0), ElementsAre("3"));
  EXPECT_THAT(*devices_of("6, GPU-7,8", 2, 0), ElementsAre("6", "GPU-7"));
}

TEST(VisibleDevices, FewerThanWorkersAreRefused) {
  EXPECT_EQ(devices_of("3,4", 3, 0).error().message(),
            "CUDA_VISIBLE_DEVICES=3,4 has 2 GPUs for 3 workers: each needs its own");
  EXPECT_EQ(devices_of("", 2, 0).error().message(),
            "CUDA_VISIBLE_DEVICES= has 0 GPUs for 2 workers: each needs its own");
  EXPECT_EQ(devices_of(std::nullopt, 2, 1).error().message(),
            "this machine has 1 GPU for 2 workers: each needs its own");
}

TEST(VisibleDevices, DifferentModelsMayBeNumberedByTheirSpeed) {
  std::vector<PresentGpu> mixed = kFour;
  mixed[2].model = "T4";
  EXPECT_TRUE(may_be_numbered_otherwise("", mixed));
  EXPECT_FALSE(may_be_numbered_otherwise("PCI_BUS_ID", mixed));
  EXPECT_FALSE(may_be_numbered_otherwise("", kFour));
  EXPECT_FALSE(may_be_numbered_otherwise("", {}));
}

}  // namespace
}  // namespace ddprun
