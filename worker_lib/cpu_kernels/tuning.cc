#include "worker_lib/cpu_kernels/tuning.h"

#include <algorithm>
#include <limits>

namespace ddprun {
namespace {

constexpr std::size_t kStageBetweenNodes = 512 << 10;
constexpr std::size_t kLeastDirectChunk = 64 << 10;
constexpr std::size_t kNever = std::numeric_limits<std::size_t>::max();

}  // namespace

CpuTuning choose_tuning(const TuningCase& group) {
  CpuTuning tuning;
  // With more ranks than cores, staging costs less than the kernel's copies, and synchronizing
  // twice is expensive.
  if (group.is_crowded) tuning.pull_bytes = kNever;
  if (group.nodes > 1) tuning.stage_bytes = kStageBetweenNodes;
  if (group.cache_bytes > 0) {
    tuning.direct_chunk_bytes =
        std::clamp(group.cache_bytes / 8, kLeastDirectChunk, tuning.direct_chunk_bytes);
  }
  return tuning;
}

}  // namespace ddprun
