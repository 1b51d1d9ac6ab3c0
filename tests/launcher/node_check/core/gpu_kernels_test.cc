#include "launcher/node_check/core/gpu_kernels.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "base/fnv1a.h"
#include "launcher/node_check/core/gpu_report.h"
#include "tests/support/temporary_directory.h"

namespace ddprun {
namespace {

// What fill() writes.
std::vector<std::uint32_t> filled(std::uint32_t mask) {
  std::vector<std::uint32_t> words(kMatrixSide * kMatrixDepth);
  for (std::uint32_t i = 0; i < words.size(); ++i) words[i] = (i * 2654435761U) ^ mask;
  return words;
}

TEST(GpuKernels, TheirKnownProductIsThatOfACpu) {
  const std::vector<std::uint32_t> left = filled(1), right = filled(2);
  std::vector<std::uint32_t> product(kMatrixSide * kMatrixSide);
  for (std::size_t i = 0; i < kMatrixSide; ++i) {
    for (std::size_t k = 0; k < kMatrixDepth; ++k) {
      for (std::size_t j = 0; j < kMatrixSide; ++j) {
        product[i * kMatrixSide + j] += left[i * kMatrixDepth + k] * right[k * kMatrixSide + j];
      }
    }
  }
  EXPECT_EQ(fnv1a({reinterpret_cast<const char*>(product.data()), product.size() * 4}),
            kKnownProduct);
}

#ifdef DDPRUN_PTXAS
// ptxas is the compiler that is part of the driver. CUDA 13 has it for sm_75 and later.
TEST(GpuKernels, AreTakenByPtxas) {
  const testing_support::TemporaryDirectory directory;
  std::ofstream(directory / "kernels.ptx") << kGpuKernels;
  for (const char* gpu : {"sm_75", "sm_80", "sm_90"}) {
    const std::string command = DDPRUN_PTXAS " --warning-as-error -arch=" + std::string(gpu) +
                                " -o " + (directory / "kernels.cubin") + " " +
                                (directory / "kernels.ptx");
    EXPECT_EQ(std::system(command.c_str()), 0) << command;
  }
}
#endif

}  // namespace
}  // namespace ddprun
