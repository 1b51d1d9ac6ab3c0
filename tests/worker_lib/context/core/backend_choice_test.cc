#include "worker_lib/context/core/backend_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ddprun {
namespace {

using Servers = std::vector<BackendChoice::Server>;

const DeviceChoice kCpu{.type = "cpu", .index = {}};
const DeviceChoice kSomeGpu{.type = "cuda", .index = {}};
const BackendEnvironment kNoGpu{.has_nccl = true};
const BackendEnvironment kTwoGpus{.gpus = 2, .has_nccl = true, .local_rank = LocalRank(5)};
const BackendEnvironment kTwoGpusWithoutNccl{.gpus = 2, .local_rank = LocalRank(5)};

BackendChoice chosen(const BackendRequest& request, const BackendEnvironment& around) {
  const Result<BackendChoice> choice = choose_backends(request, around);
  EXPECT_TRUE(choice) << choice.error().message();
  return choice ? *choice : BackendChoice();
}

std::string refusal(const BackendRequest& request, const BackendEnvironment& around) {
  const Result<BackendChoice> choice = choose_backends(request, around);
  return choice ? "not refused" : choice.error().message();
}

TEST(BackendChoice, WithoutAWordAGpuIsUsedWhereThereIsOneAndTheProgramCan) {
  const BackendChoice on_gpu = chosen({}, kTwoGpus);
  EXPECT_EQ(on_gpu.device, (DeviceChoice{.type = "cuda", .index = 1}));  // 5 modulo 2
  EXPECT_EQ(on_gpu.servers, (Servers{{"cpu", "cpu"}, {"cuda", "nccl"}}));
  EXPECT_EQ(on_gpu.main_backend(), "nccl");
  for (const BackendEnvironment& around : {kNoGpu, kTwoGpusWithoutNccl}) {
    const BackendChoice on_cpu = chosen({}, around);
    EXPECT_EQ(on_cpu.device, kCpu);
    EXPECT_EQ(on_cpu.servers, (Servers{{"cpu", "cpu"}}));
    EXPECT_EQ(on_cpu.main_backend(), "cpu");
  }
}

TEST(BackendChoice, TheDeviceThatIsAskedForSaysWhichBackend) {
  EXPECT_EQ(chosen({.device = kCpu, .backend = {}}, kTwoGpus).servers, (Servers{{"cpu", "cpu"}}));
  const BackendChoice first =
      chosen({.device = DeviceChoice{.type = "cuda", .index = 0}, .backend = {}}, kTwoGpus);
  EXPECT_EQ(first.device.index, 0);
  EXPECT_EQ(first.main_backend(), "nccl");
}

TEST(BackendChoice, WithoutNcclTheTensorsOfAGpuTravelThroughTheHost) {
  const BackendChoice choice = chosen({.device = kSomeGpu, .backend = {}}, kTwoGpusWithoutNccl);
  EXPECT_EQ(choice.servers, (Servers{{"cpu", "cpu"}, {"cuda", "cpu"}}));
  EXPECT_EQ(choice.main_backend(), "cpu");
}

TEST(BackendChoice, TheCpuBackendTakesTheTensorsOfEveryDeviceButWorksOnTheCpuIfNobodySays) {
  const BackendChoice choice = chosen({.device = {}, .backend = "cpu"}, kTwoGpus);
  EXPECT_EQ(choice.device, kCpu);
  EXPECT_EQ(choice.servers, (Servers{{"cpu", "cpu"}, {"cuda", "cpu"}}));
  const BackendChoice on_gpu = chosen({.device = kSomeGpu, .backend = "cpu"}, kTwoGpus);
  EXPECT_EQ(on_gpu.device, (DeviceChoice{.type = "cuda", .index = 1}));
  EXPECT_EQ(on_gpu.main_backend(), "cpu");
  EXPECT_EQ(chosen({.device = {}, .backend = "cpu"}, kNoGpu).servers, (Servers{{"cpu", "cpu"}}));
}

TEST(BackendChoice, NcclIsForGpusOnly) {
  const BackendChoice choice = chosen({.device = {}, .backend = "nccl"}, kTwoGpus);
  EXPECT_EQ(choice.device.type, "cuda");
  EXPECT_EQ(choice.servers, (Servers{{"cuda", "nccl"}}));
}

TEST(BackendChoice, AListHasOneBackendForEachTypeOfDevice) {
  const BackendChoice both = chosen({.device = {}, .backend = "cpu:cpu,cuda:nccl"}, kTwoGpus);
  EXPECT_EQ(both.device.type, "cuda");
  EXPECT_EQ(both.servers, (Servers{{"cpu", "cpu"}, {"cuda", "nccl"}}));
  EXPECT_EQ(chosen({.device = kCpu, .backend = "cpu:cpu,cuda:nccl"}, kTwoGpus).main_backend(),
            "cpu");
  const BackendChoice staged = chosen({.device = {}, .backend = "cuda:cpu"}, kTwoGpus);
  EXPECT_EQ(staged.device.type, "cuda");
  EXPECT_EQ(staged.servers, (Servers{{"cuda", "cpu"}}));
}

TEST(BackendChoice, ABackendOfTheProgramsOwnIsFoundByItsName) {
  BackendEnvironment around = kTwoGpus;
  around.custom_backends = {{.name = "mine", .device_types = {"cpu"}},
                            {.name = "theirs", .device_types = {"xpu", "cpu"}}};
  EXPECT_EQ(chosen({.device = {}, .backend = "mine"}, around).servers, (Servers{{"cpu", "mine"}}));
  const BackendChoice listed = chosen({.device = {}, .backend = "cpu:mine,cuda:nccl"}, around);
  EXPECT_EQ(listed.servers, (Servers{{"cpu", "mine"}, {"cuda", "nccl"}}));
  const DeviceChoice xpu{.type = "xpu", .index = 3};
  const BackendChoice other = chosen({.device = xpu, .backend = "theirs"}, around);
  EXPECT_EQ(other.device, xpu);
  EXPECT_EQ(other.servers, (Servers{{"xpu", "theirs"}, {"cpu", "theirs"}}));
  EXPECT_EQ(refusal({.device = {}, .backend = "hers"}, around),
            "there is no backend 'hers'; there are cpu, nccl, mine and theirs");
}

TEST(BackendChoice, WhatCannotBeHadIsSaid) {
  const auto backend = [](const char* text) {
    return BackendRequest{.device = {}, .backend = text};
  };
  EXPECT_EQ(refusal(backend("gloo"), kNoGpu), "there is no backend 'gloo'; there are cpu and nccl");
  EXPECT_EQ(refusal(backend(""), kNoGpu), "there is no backend ''; there are cpu and nccl");
  EXPECT_EQ(refusal(backend("cpu:gloo"), kNoGpu),
            "there is no backend 'gloo'; there are cpu and nccl");
  EXPECT_EQ(refusal(backend("nccl"), kTwoGpusWithoutNccl),
            "backend nccl needs a program that is linked with ddprun::worker_cuda; this one is "
            "linked with ddprun::worker");
  EXPECT_EQ(refusal(backend("nccl"), kNoGpu), "there is no GPU here, or no driver for it");
  EXPECT_EQ(refusal(backend("cpu:nccl"), kTwoGpus), "backend nccl is for device cuda, not cpu");
  EXPECT_EQ(refusal(backend("cpu:cpu,cpu:cpu"), kTwoGpus), "device cpu is given two backends");
  for (const char* bad :
       {"cpu:cpu,", ",cpu:cpu", "cpu:", ":cpu", "cpu:cpu,,cuda:nccl", "cpu,nccl"}) {
    EXPECT_THAT(refusal(backend(bad), kTwoGpus),
                testing::HasSubstr("(expected DEVICE:BACKEND, as in cpu:cpu,cuda:nccl)"))
        << bad;
  }
}

TEST(BackendChoice, ADeviceThatNobodyServesOrThatIsNotThereIsRefused) {
  EXPECT_EQ(refusal({.device = kCpu, .backend = "nccl"}, kTwoGpus),
            "backend nccl is for device cuda, not cpu");
  EXPECT_EQ(refusal({.device = kSomeGpu, .backend = "cpu:cpu"}, kTwoGpus),
            "backend cpu:cpu is for device cpu, not cuda");
  EXPECT_EQ(refusal({.device = DeviceChoice{.type = "meta", .index = {}}, .backend = {}}, kTwoGpus),
            "device meta is not known here; there are cpu and cuda");
  EXPECT_EQ(refusal({.device = DeviceChoice{.type = "cuda", .index = 2}, .backend = {}}, kTwoGpus),
            "device cuda:2 does not exist; there are 2 GPUs, cuda:0 to cuda:1");
  EXPECT_EQ(refusal({.device = kSomeGpu, .backend = "cpu"}, kNoGpu),
            "there is no GPU here, or no driver for it");
}

}  // namespace
}  // namespace ddprun
