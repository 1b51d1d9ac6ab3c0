#include "worker_lib/cpu_kernels/tuning.h"

#include <algorithm>
#include <limits>

namespace ddprun {
namespace {

constexpr std::size_t operator""_KiB(unsigned long long count) { return count << 10; }
constexpr std::size_t operator""_MiB(unsigned long long count) { return count << 20; }

// Measured with 2, 4 and 8 ranks on two cores with 1 or 2 MiB of second-level cache each:
//
//   spin          Two running ranks pass a step to each other in well under a microsecond. After
//                 a longer time one of them is busy elsewhere, and other threads use the core
//                 better.
//   stage         Smaller stages synchronize too often; larger ones leave the cache before they
//                 are read. Between nodes each chunk is a network step: at full speed, twice as
//                 much is up to a tenth faster; at 1 Gbit/s every size fills the link.
//   small reduce  The size at which 4 and 8 ranks are as fast with shares.
//   direct        An eighth of the second-level cache. A rank reads a chunk of its own, stages
//                 it, does the same with the next one, and reduces the first one with the other
//                 rank's. With 1 MiB of cache, 25 MiB take a fifth less time in chunks of
//                 128 KiB than of 256 KiB; with 2 MiB a tenth more. Below 8 MiB there is no
//                 difference.
//   repeated      8 KiB take 65 us at 1 Gbit/s, about as long as a step through such a network.
//   stream        The size from which results come sooner: by a tenth with 2 MiB of second-level
//                 cache, in half the time if 32 MiB of third-level cache are all there is; at
//                 100 MiB by a third.
//   in place      The size at which 4 ranks are as fast as with staging; 2 ranks gain from 4 KiB
//                 on.
//   pull          Below this size it gains nowhere. Above, it takes between half and twice the
//                 time of staging, depending on the processor, hence the trial.
constexpr CpuTuning kChosen{.spin = std::chrono::microseconds(20),
                            .stage_bytes = 256_KiB,
                            .small_reduce_bytes = 64_KiB,
                            .direct_chunk_bytes = 256_KiB,
                            .long_direct_bytes = 8_MiB,
                            .in_place_bytes = 8_KiB,
                            .repeated_bytes = 8_KiB,
                            .stream_bytes = 16_MiB,
                            .pull_bytes = 64_KiB};
constexpr std::size_t kStageBetweenNodes = 512_KiB;
constexpr std::size_t kLeastDirectChunk = 64_KiB;
constexpr std::size_t kNever = std::numeric_limits<std::size_t>::max();

}  // namespace

CpuTuning choose_tuning(const TuningCase& group, const TuningOverrides& wish) {
  CpuTuning tuning = kChosen;
  // With more ranks than cores, staging costs less than the kernel's copies, and synchronizing
  // twice is expensive.
  if (group.is_crowded) tuning.pull_bytes = kNever;
  if (group.nodes > 1) tuning.stage_bytes = kStageBetweenNodes;
  if (group.cache_bytes > 0) {
    tuning.direct_chunk_bytes =
        std::clamp(group.cache_bytes / 8, kLeastDirectChunk, kChosen.direct_chunk_bytes);
  }
  const auto set = [](auto& value, const auto& wanted) { value = wanted.value_or(value); };
  set(tuning.spin, wish.spin);
  set(tuning.stage_bytes, wish.stage_bytes);
  set(tuning.small_reduce_bytes, wish.small_reduce_bytes);
  set(tuning.direct_chunk_bytes, wish.direct_chunk_bytes);
  set(tuning.in_place_bytes, wish.in_place_bytes);
  set(tuning.repeated_bytes, wish.repeated_bytes);
  set(tuning.stream_bytes, wish.stream_bytes);
  set(tuning.pull_bytes, wish.pull_bytes);
  tuning.tries_pulling = wish.tries_pulling || !wish.pull_bytes;
  return tuning;
}

}  // namespace ddprun
