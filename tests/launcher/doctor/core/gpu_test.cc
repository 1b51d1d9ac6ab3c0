#include "tests/launcher/doctor/core/frame.h"

namespace ddprun {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using namespace testing_support;

DoctorFacts with_gpus(int count) {
  DoctorFacts facts = healthy_facts();
  facts.gpus = {.device_files = count,
                .pci_devices = count,
                .kernel_driver_version = "580.1",
                .has_library = true,
                .count = count,
                .driver_version = "580.1",
                .cuda_version = 13000,
                .visible_count = count};
  facts.nccl.torch = {
      .root = "/v/torch", .version = "2.11.0+cu130", .cuda = "13.0", .nccl = "2.28.9"};
  facts.nccl.beside_torch = {.path = "/v/nvidia/libnccl.so.2", .version = "2.28.9"};
  return facts;
}

TEST(DoctorGpus, AreNotMissedOnAHostWithout) {
  DoctorFacts facts = healthy_facts();
  EXPECT_EQ(level_of(facts, "gpus"), Level::kOk);
  facts.job.wants_gpus = true;
  EXPECT_EQ(level_of(facts, "gpus"), Level::kProblem);
}

TEST(DoctorGpus, ThatNoProgramCanUseAreAProblem) {
  DoctorFacts facts = healthy_facts();
  facts.gpus = {.device_files = 8};
  EXPECT_EQ(level_of(facts, "gpus"), Level::kProblem);
  EXPECT_THAT(finding_of(facts, "gpus").advice, HasSubstr("--gpus all"));
  facts.gpus = {.pci_devices = 8};
  EXPECT_THAT(finding_of(facts, "gpus").seen, HasSubstr("no driver is loaded"));
  facts.gpus = {
      .device_files = 8, .has_library = true, .library_error = "Driver/library version mismatch"};
  EXPECT_EQ(level_of(facts, "gpus"), Level::kProblem);
  EXPECT_THAT(finding_of(facts, "gpus").seen, HasSubstr("version mismatch"));
  facts.gpus = {.library_hangs = true};
  EXPECT_EQ(level_of(facts, "gpus"), Level::kProblem);
  facts.gpus = {.has_library = true, .library_error = "Driver Not Loaded"};
  EXPECT_EQ(level_of(facts, "gpus"), Level::kOk) << "a CPU node of a cluster with one image";
}

TEST(DoctorGpus, HaveToBeVisibleAndOneForEachWorker) {
  DoctorFacts facts = with_gpus(8);
  facts.job.workers_here = 8;
  facts.machine.usable_cores = 8;
  EXPECT_EQ(level_of(facts, "gpus"), Level::kOk);
  facts.job.workers_here = 9;
  EXPECT_EQ(level_of(facts, "gpus"), Level::kWarning);
  facts.gpus.visible = "";
  facts.gpus.visible_count = 0;
  EXPECT_EQ(level_of(facts, "gpus"), Level::kWarning);
  facts.job.wants_gpus = true;
  EXPECT_EQ(level_of(facts, "gpus"), Level::kProblem);
}

TEST(DoctorGpus, WithoutPersistenceModeAreNoted) {
  DoctorFacts facts = with_gpus(2);
  facts.gpus.without_persistence = 2;
  EXPECT_EQ(level_of(facts, "gpus"), Level::kNote);
}

TEST(DoctorDriver, IsNotMissedWhereThereIsNoGpu) {
  DoctorFacts facts = healthy_facts();
  EXPECT_EQ(finding_of(facts, "driver").seen, "NVIDIA's driver is not loaded");
  EXPECT_EQ(level_of(facts, "driver"), Level::kOk);
}

TEST(DoctorDriver, HasToBeAsNewAsLibTorchsCuda) {
  DoctorFacts facts = with_gpus(1);
  EXPECT_EQ(
      finding_of(facts, "driver").seen,
      "NVIDIA's driver is 580.1, for CUDA up to 13.0; LibTorch 2.11.0+cu130 is built with 13.0");
  facts.gpus.cuda_version = 12080;
  EXPECT_EQ(level_of(facts, "driver"), Level::kProblem);
  facts.nccl.torch.cuda = "12.9";
  EXPECT_EQ(level_of(facts, "driver"), Level::kOk) << "of one major version any driver will do";
  facts.nccl.torch.cuda = "";
  EXPECT_EQ(level_of(facts, "driver"), Level::kWarning);
}

TEST(DoctorNccl, IsComparedWithWhatLibTorchWasBuiltWith) {
  DoctorFacts facts = with_gpus(1);
  EXPECT_THAT(finding_of(facts, "nccl").seen,
              AllOf(HasSubstr("NCCL 2.28.9 at /v/nvidia"), HasSubstr("was built with 2.28.9")));
  EXPECT_EQ(level_of(facts, "nccl"), Level::kOk);
  facts.nccl.beside_torch.version = "2.28.10";
  EXPECT_EQ(level_of(facts, "nccl"), Level::kNote) << "10 is more than 9";
  facts.nccl.beside_torch.version = "2.27.9";
  EXPECT_EQ(level_of(facts, "nccl"), Level::kProblem);
  facts.gpus = {};
  EXPECT_EQ(level_of(facts, "nccl"), Level::kWarning) << "nobody needs it here";
}

TEST(DoctorNccl, OfAnotherVersionOnTheLibraryPathIsNamed) {
  DoctorFacts facts = with_gpus(1);
  facts.nccl.of_loader = {.path = "/usr/lib/libnccl.so.2", .version = "2.18.1"};
  EXPECT_EQ(level_of(facts, "nccl"), Level::kOk) << "the system's comes last";
  facts.nccl.of_loader.by_variable = true;
  EXPECT_EQ(level_of(facts, "nccl"), Level::kProblem);
  EXPECT_THAT(finding_of(facts, "nccl").seen, HasSubstr("LD_LIBRARY_PATH contains NCCL 2.18.1"));
}

TEST(DoctorNccl, ThatTheLoaderFindsIsComparedWhereNoneIsBesideLibTorch) {
  DoctorFacts facts = with_gpus(1);
  facts.nccl.beside_torch = {};
  facts.nccl.of_loader = {.path = "/usr/lib/libnccl.so.2", .version = "2.28.9"};
  EXPECT_EQ(level_of(facts, "nccl"), Level::kOk);
  facts.nccl.of_loader.version = "2.18.1";
  EXPECT_EQ(level_of(facts, "nccl"), Level::kProblem);
  EXPECT_THAT(finding_of(facts, "nccl").advice, HasSubstr("nvidia-nccl-cu13==2.28.9"));
  facts.nccl.of_loader.version = "";
  EXPECT_EQ(level_of(facts, "nccl"), Level::kProblem) << "it cannot be opened";
}

TEST(DoctorNccl, ThatIsMissingIsNamed) {
  DoctorFacts facts = with_gpus(1);
  facts.nccl.beside_torch = {};
  Finding finding = finding_of(facts, "nccl");
  EXPECT_EQ(finding.level, Level::kProblem);
  EXPECT_THAT(finding.advice, HasSubstr("nvidia-nccl-cu13==2.28.9"));
  facts.nccl = {};
  EXPECT_EQ(level_of(facts, "nccl"), Level::kWarning) << "neither NCCL nor LibTorch";
  facts.gpus = {};
  EXPECT_EQ(level_of(facts, "nccl"), Level::kOk);
}

TEST(DoctorNccl, OfAVersionThatCannotBeToldSaysSo) {
  DoctorFacts facts = healthy_facts();
  facts.nccl.of_loader = {.path = "/usr/lib/libnccl.so.2", .version = "2.18.1"};
  EXPECT_THAT(finding_of(facts, "nccl").seen, HasSubstr("no LibTorch was found to compare"));
  facts.nccl.torch = {.root = "/opt/libtorch", .version = "2.9.0", .cuda = "12.8"};
  EXPECT_THAT(finding_of(facts, "nccl").seen, HasSubstr("does not record its NCCL version"));
}

TEST(DoctorNccl, OnADiskThatHangsIsAProblem) {
  DoctorFacts facts = healthy_facts();
  facts.nccl.hangs = true;
  EXPECT_EQ(level_of(facts, "nccl"), Level::kProblem);
}

}  // namespace
}  // namespace ddprun
