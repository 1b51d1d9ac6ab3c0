#include "launcher/doctor/gpus.h"

#include <gtest/gtest.h>

#include "tests/support/temporary_directory.h"

namespace ddprun {
namespace {

class DoctorLibTorch : public testing::Test {
 protected:
  const testing_support::TemporaryDirectory directory_;
};

TEST_F(DoctorLibTorch, SaysWhatAWheelWasBuiltWith) {
  directory_.write("site-packages/torch/version.py",
                   "from typing import Optional\n__version__ = '2.11.0+cu130'\ndebug = False\n"
                   "cuda: Optional[str] = '13.0'\nhip: Optional[str] = None\n");
  directory_.write("site-packages/torch-2.11.0.dist-info/METADATA",
                   "Name: torch\nRequires-Dist: nvidia-nvtx-cu13==13.0.85\n"
                   "Requires-Dist: nvidia-nccl-cu13==2.28.9; platform_system == \"Linux\"\n");
  const LibTorchFacts facts = read_libtorch(directory_ / "site-packages/torch");
  EXPECT_EQ(facts.version, "2.11.0+cu130");
  EXPECT_EQ(facts.cuda, "13.0");
  EXPECT_EQ(facts.nccl, "2.28.9");
}

TEST_F(DoctorLibTorch, SaysThatAWheelIsBuiltWithoutCuda) {
  directory_.write("site-packages/torch/version.py",
                   "__version__ = '2.11.0+cpu'\ncuda: Optional[str] = None\n");
  const LibTorchFacts facts = read_libtorch(directory_ / "site-packages/torch");
  EXPECT_EQ(facts.version, "2.11.0+cpu");
  EXPECT_EQ(facts.cuda, "");
  EXPECT_EQ(facts.nccl, "");
}

TEST_F(DoctorLibTorch, ReadsTheArchiveWithoutPython) {
  directory_.write("libtorch/build-version", "2.9.1+cu128\n");
  const LibTorchFacts facts = read_libtorch(directory_ / "libtorch");
  EXPECT_EQ(facts.version, "2.9.1+cu128");
  EXPECT_EQ(facts.cuda, "12.8");
  EXPECT_EQ(facts.nccl, "") << "it is inside, and nothing says which";
}

TEST_F(DoctorLibTorch, IsLookedForWhereItIsSaidToBeAndNowhereElse) {
  directory_.write("libtorch/lib/libtorch.so", "");
  EXPECT_EQ(libtorch_directories(directory_ / "libtorch"),
            std::vector<std::string>{directory_ / "libtorch"});
  EXPECT_TRUE(libtorch_directories(directory_ / "elsewhere").empty());
}

TEST_F(DoctorLibTorch, ThatCannotBeOpenedHasAReason) {
  directory_.write("site-packages/torch/lib/libtorch.so", "");
  directory_.write("site-packages/nvidia/nccl/lib/libnccl.so.2", "no library");
  const NcclFacts facts = look_at_nccl(directory_ / "site-packages/torch");
  EXPECT_EQ(facts.beside_torch.path, directory_ / "site-packages/nvidia/nccl/lib/libnccl.so.2");
  EXPECT_EQ(facts.beside_torch.version, "");
  EXPECT_NE(facts.beside_torch.why, "");
}

TEST(NcclVersionText, CountsAsNcclDoes) {
  EXPECT_EQ(nccl_version_text(22809), "2.28.9");
  EXPECT_EQ(nccl_version_text(21003), "2.10.3");
  EXPECT_EQ(nccl_version_text(2708), "2.7.8") << "before 2.9";
}

}  // namespace
}  // namespace ddprun
