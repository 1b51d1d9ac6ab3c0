#include "tests/worker_lib/support/gpu_ranks.h"

#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <nccl.h>

#include <cstdlib>
#include <vector>

#include "ddprun/context.h"
#include "tests/support/torch.h"
#include "worker_lib/nccl/backend_nccl.h"

namespace ddprun {
namespace {

constexpr std::size_t kMostRanks = 8;

// Set before main(), because CUDA and NCCL read these variables only once.
[[maybe_unused]] const bool kIsEnvironmentSet = [] {
  const auto set = [](const char* name, const char* value) { setenv(name, value, 0); };
  set("NCCL_MULTI_RANK_GPU_ENABLE", "1");
  set("CUDA_MODULE_LOADING", "EAGER");
  set("CUDA_DEVICE_MAX_CONNECTIONS", "32");
  set("NCCL_MAX_CTAS", "4");
  return true;
}();

// Returns the stream of a rank. Its priority differs from that of the streams of NCCL and of
// the backends, because a hardware queue has one priority. A rank always gets the same stream,
// because the allocator's memory belongs to a stream.
c10::cuda::CUDAStream stream_of(int rank) {
  static const std::vector<c10::cuda::CUDAStream> streams = [] {
    std::vector<c10::cuda::CUDAStream> made;
    for (std::size_t i = 0; i < kMostRanks; ++i) {
      made.push_back(c10::cuda::getStreamFromPool(/*priority=*/-1, kFirstGpu.index()));
    }
    return made;
  }();
  return streams.at(static_cast<std::size_t>(rank));
}

}  // namespace

std::string why_no_ranks_on_gpu(int ranks) {
  if (nccl_backend_factory()->device_count() == 0) return "there is no GPU here";
  if (ranks == 1) return "";
  int version = 0;
  if (ncclGetVersion(&version) != ncclSuccess) return "NCCL does not tell its version";
  if (version >= NCCL_VERSION(2, 30, 0)) return "";
  return "several ranks on one GPU need NCCL 2.30, and this is " + std::to_string(version / 10000) +
         "." + std::to_string(version / 100 % 100) + "." + std::to_string(version % 100);
}

void prepare_gpu_for(int ranks) {
  const auto bytes = torch::TensorOptions(torch::kUInt8);
  std::vector<torch::Tensor> room;
  for (int rank = 0; rank < ranks; ++rank) {
    const c10::cuda::CUDAStreamGuard guard(stream_of(rank));
    // The allocator puts tensors of up to 1 MiB into segments of 2 MiB, larger ones into
    // segments of 20 MiB.
    for (int i = 0; i < 16; ++i) room.push_back(torch::empty({1 << 20}, bytes.device(kFirstGpu)));
    for (int i = 0; i < 2; ++i) room.push_back(torch::empty({9 << 20}, bytes.device(kFirstGpu)));
    // Host memory: item() copies a number into it.
    for (int i = 0; i < 4; ++i) room.push_back(torch::empty({8}, bytes.pinned_memory(true)));
  }
  c10::cuda::device_synchronize();
}

void become_rank_on_gpu(int rank) {
  c10::cuda::set_device(kFirstGpu.index());
  c10::cuda::setCurrentCUDAStream(stream_of(rank));
}

}  // namespace ddprun
