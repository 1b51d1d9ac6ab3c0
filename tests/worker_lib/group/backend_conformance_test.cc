// Runs the conformance suite (backend_conformance.h) without a GPU. The cpu backend is tested
// with tensors on the host and on the QueueDevice, the nccl backend on its double.
// conformance_processes_test starts this program once for each rank of a world instead.
#include "tests/worker_lib/support/backend_conformance.h"

#include "tests/support/eventually.h"
#include "tests/worker_lib/nccl/double.h"
#include "tests/worker_lib/support/queue_device.h"

namespace ddprun {
namespace {

class DoubleWorld final : public NcclWorld {
 public:
  explicit DoubleWorld(const std::string& letters)
      : NcclWorld(letters, torch::kCPU, NcclDouble::api(), std::chrono::milliseconds(300)) {
    double_.set_rounds_in_progress(2);
  }

  void synchronize() override {
    if (!testing_support::eventually([this] { return double_.is_stream_idle(); })) {
      ADD_FAILURE() << "the stream does not become idle";
    }
  }

 private:
  NcclDouble double_;
};

class QueueDeviceWorld final : public CpuWorld {
 public:
  explicit QueueDeviceWorld(const std::string& letters)
      : CpuWorld(letters, QueueDevice::install()) {}

  void drain() override { QueueDevice::drain(); }
};

BackendUnderTest cpu() {
  return cpu_under_test("cpu", {"a", "aa", "ab", "aaa", "aab", "abb", "abc", "aaaa", "aabb", "abab",
                                "aabc", "aaaaaaaa", "aaaabbbb", "aaabbbcc"});
}

BackendUnderTest cpu_staged() {
  BackendUnderTest backend = cpu_under_test("cpu_staged", {"a", "aa", "ab", "aab", "aabb"});
  backend.make_world = [](const std::string& l) { return std::make_unique<QueueDeviceWorld>(l); };
  return backend;
}

BackendUnderTest nccl_double() {
  BackendUnderTest backend = nccl_under_test("nccl_double", {"a", "aa", "aaa", "aaaa", "aaaaaaaa"});
  backend.make_world = [](const std::string& l) { return std::make_unique<DoubleWorld>(l); };
  return backend;
}

INSTANTIATE_TEST_SUITE_P(, BackendConformance, testing::Values(cpu(), cpu_staged(), nccl_double()),
                         name_of_backend);
INSTANTIATE_TEST_SUITE_P(, ObjectConformance, testing::Values(cpu(), cpu_staged()),
                         name_of_backend);

}  // namespace
}  // namespace ddprun
