// CpuTuning: the parameters of the cpu engine that were found by measuring.
// `benchmarks/collectives.py --only tuning` runs the engine with other values;
// docs/measurements/collectives.md has the table. No result depends on them. Plain values and a
// pure function; thread-safe.
#pragma once

#include <cstddef>

#include "base/clock.h"

namespace ddprun {

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
struct CpuTuning {
  // How long a wait spins before it sleeps, if every rank of the machine has a core.
  Duration spin = std::chrono::microseconds(20);
  std::size_t stage_bytes = 256 << 10;  // at least
  // Up to this many bytes, one synchronization less is worth more than sharing the work: every
  // rank reduces all. Counted are the bytes that a rank contributes to a reduction, times the
  // ranks of the node.
  std::size_t small_reduce_bytes = 64 << 10;
  // Chunk size of an all_reduce of two ranks of long_direct_bytes or more. Bytes that leave the
  // caches before they are read again come from memory twice. So the chunks in use must fit the
  // second-level cache.
  std::size_t direct_chunk_bytes = 256 << 10;
  std::size_t long_direct_bytes = 8 << 20;
  // Size of a shared tensor below which staging is faster, as it synchronizes once less.
  std::size_t in_place_bytes = 8 << 10;
  // Bytes that a node may send beyond the minimum so that every node can reduce all. Results
  // then need no second network step.
  std::size_t repeated_bytes = 8 << 10;
  // From this size on, the bytes that a rank gives and gets in a call do not stay in the caches.
  // Then results are written past them (cpu_kernels/stream_copy.h), and staging is faster than
  // pulling again.
  std::size_t stream_bytes = 16 << 20;
  // Counts bytes from one rank to another. From this size on, an all_gather and an all_to_all on
  // one node may copy the bytes once, from private memory, without staging. (A broadcast is
  // faster staged: the root copies, too.)
  std::size_t pull_bytes = 32 << 10;
  // Whether they find out by a trial if pulling is faster (cpu_calls/core/pull_trial.h). Without
  // a trial they pull.
  bool tries_pulling = true;
};

// TuningCase: the properties of a group's layout that the choices depend on; the same on all its
// ranks.
struct TuningCase {
  bool is_crowded = false;  // some machine has more ranks than cores
  int nodes = 1;
  std::size_t cache_bytes = 0;  // second-level cache of a core; 0: unknown
};
CpuTuning choose_tuning(const TuningCase& group);

}  // namespace ddprun
