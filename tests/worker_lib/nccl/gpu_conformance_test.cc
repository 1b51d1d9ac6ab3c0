// Runs the conformance suite (backend_conformance.h) with tensors on a GPU. The nccl backend
// uses the real NCCL with one rank. If NCCL allows several ranks on one GPU (2.30), it also
// runs with several, as threads and as processes. The cpu backend carries the GPU's tensors
// through the host. Without a GPU the whole suite is skipped.
#include <c10/cuda/CUDAFunctions.h>

#include "tests/worker_lib/support/backend_conformance.h"
#include "tests/worker_lib/support/conformance_processes.h"
#include "tests/worker_lib/support/gpu_ranks.h"

namespace ddprun {
namespace {

using std::chrono::seconds;

// A world whose ranks share the first GPU.
template <class Kind>
class GpuWorld final : public Kind {
 public:
  template <class... Rest>
  explicit GpuWorld(const std::string& letters, const Rest&... rest)
      : Kind(letters, kFirstGpu, rest...) {
    prepare_gpu_for(this->size);
  }

  void drain() override { c10::cuda::device_synchronize(); }

 private:
  void begin(int rank) override { become_rank_on_gpu(rank); }
};

BackendUnderTest nccl() {
  BackendUnderTest backend = nccl_under_test("nccl", {"a", "aa", "aaa", "aaaa"});
  backend.make_world = [](const std::string& l) {
    return std::make_unique<GpuWorld<NcclWorld>>(l, real_nccl_api(), seconds(2));
  };
  backend.why_not = why_no_ranks_on_gpu;
  return backend;
}

BackendUnderTest cpu() {
  BackendUnderTest backend =
      cpu_under_test("cpu", {"a", "aa", "ab", "aab", "abc", "aabb", "aaaaaaaa"});
  backend.make_world = [](const std::string& l) { return std::make_unique<GpuWorld<CpuWorld>>(l); };
  backend.why_not = [](int) { return why_no_ranks_on_gpu(1); };
  return backend;
}

INSTANTIATE_TEST_SUITE_P(, BackendConformance, testing::Values(nccl(), cpu()), name_of_backend);
INSTANTIATE_TEST_SUITE_P(, ObjectConformance, testing::Values(nccl(), cpu()), name_of_backend);

// Each process has its own context on the GPU, and the processes take turns to use it.
class NcclOfProcesses : public testing::TestWithParam<const char*> {};

TEST_P(NcclOfProcesses, PassesTheSuiteOnEveryRank) {
  const std::string letters = GetParam();
  const std::string why_not = why_no_ranks_on_gpu(static_cast<int>(letters.size()));
  if (!why_not.empty()) GTEST_SKIP() << why_not;
  testing_support::expect_suite_passes_in_processes("/proc/self/exe", "*Conformance.*/nccl",
                                                    letters, seconds(240));
}

INSTANTIATE_TEST_SUITE_P(, NcclOfProcesses, testing::Values("aa", "aaa"), [](const auto& layout) {
  return "processes_" + std::string(layout.param);
});

}  // namespace
}  // namespace ddprun
