#include "worker_lib/cpu_kernels/tuning.h"

#include <algorithm>
#include <limits>

namespace ddprun {
namespace {

constexpr std::size_t operator""_KiB(unsigned long long count) { return count << 10; }
constexpr std::size_t operator""_MiB(unsigned long long count) { return count << 20; }

// With 2, 4 and 8 ranks on two cores with 1 or 2 MiB of second-level cache each:
//
//   spin          two ranks that run pass a step to each other in well under a microsecond; beyond this one of
//                 them is busy elsewhere, and the core is better used by others
//   stage         smaller ones meet too often, larger ones leave the cache before they are read; between
//                 nodes at full speed up to a tenth quicker with twice as much, as a chunk is a journey, and
//                 at 1 Gbit/s every size fills the wire
//   small reduce  where 4 and 8 ranks are as quick with shares
//   direct        an eighth of the second-level cache: a rank reads a chunk of its own, stages it, does so with
//                 the next one, and folds the first one with the other rank's. With 1 MiB of cache 25 MiB take
//                 a fifth less time in chunks of 128 KiB than of 256, with 2 MiB a tenth more; below 8 MiB
//                 it is the same
//   repeated      8 KiB take 65 us at 1 Gbit/s, about what a journey through such a network does
//   stream        where results come sooner, a tenth with 2 MiB of second-level cache, or in half the time
//                 where 32 MiB of third-level cache are all there is; at 100 MiB a third
//   in place      where 4 ranks are as quick as with staging; 2 ranks gain from 4 KiB on
//   pull          below this it gains nowhere; above, it takes from half to twice as long as staging does,
//                 as the processor has it, hence the trial
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

CpuTuning choose_tuning(const TuningCase& group, const TuningWish& wish) {
  CpuTuning tuning = kChosen;
  // More ranks than cores stage more cheaply than the kernel copies, and meet twice dearly.
  if (group.is_crowded) tuning.pull_bytes = kNever;
  if (group.nodes > 1) tuning.stage_bytes = kStageBetweenNodes;
  if (group.cache_bytes > 0) {
    tuning.direct_chunk_bytes =
        std::clamp(group.cache_bytes / 8, kLeastDirectChunk, kChosen.direct_chunk_bytes);
  }
  tuning.spin = wish.spin.value_or(tuning.spin);
  tuning.stage_bytes = wish.stage_bytes.value_or(tuning.stage_bytes);
  tuning.small_reduce_bytes = wish.small_reduce_bytes.value_or(tuning.small_reduce_bytes);
  tuning.direct_chunk_bytes = wish.direct_chunk_bytes.value_or(tuning.direct_chunk_bytes);
  tuning.in_place_bytes = wish.in_place_bytes.value_or(tuning.in_place_bytes);
  tuning.repeated_bytes = wish.repeated_bytes.value_or(tuning.repeated_bytes);
  tuning.stream_bytes = wish.stream_bytes.value_or(tuning.stream_bytes);
  tuning.pull_bytes = wish.pull_bytes.value_or(tuning.pull_bytes);
  tuning.tries_pulling = wish.tries_pulling || !wish.pull_bytes;
  return tuning;
}

}  // namespace ddprun
