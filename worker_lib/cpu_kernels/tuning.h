// CpuTuning: the parameters of the cpu engine that were found by measuring.
// `benchmarks/collectives.py --only tuning` runs the engine with other values;
// docs/measurements/collectives.md has the table. No result depends on them. Plain values and a
// pure function; thread-safe.
#pragma once

#include <cstddef>
#include <optional>

#include "base/clock.h"

namespace ddprun {

struct CpuTuning {
  // How long a wait spins before it sleeps, if every rank of the machine has a core.
  Duration spin{};
  std::size_t stage_bytes = 0;  // at least
  // Up to this many bytes, one synchronization less is worth more than sharing the work: every
  // rank reduces all. Counted are the bytes that a rank contributes to a reduction, times the
  // ranks of the node.
  std::size_t small_reduce_bytes = 0;
  // Chunk size of an all_reduce of two ranks of long_direct_bytes or more. Bytes that leave the
  // caches before they are read again come from memory twice. So the chunks in use must fit the
  // second-level cache.
  std::size_t direct_chunk_bytes = 0;
  std::size_t long_direct_bytes = 0;
  // Size of a shared tensor below which staging is faster, as it synchronizes once less.
  std::size_t in_place_bytes = 0;
  // Bytes that a node may send beyond the minimum so that every node can reduce all. Results
  // then need no second network step.
  std::size_t repeated_bytes = 0;
  // From this size on, the bytes that a rank gives and gets in a call do not stay in the caches.
  // Then results are written past them (cpu_kernels/stream_copy.h), and staging is faster than
  // pulling again.
  std::size_t stream_bytes = 0;
  // Counts bytes from one rank to another. From this size on, an all_gather and an all_to_all on
  // one node may copy the bytes once, from private memory, without staging. (A broadcast is
  // faster staged: the root copies, too.)
  std::size_t pull_bytes = 0;
  // Whether they find out by a trial if pulling is faster (cpu_calls/core/pull_trial.h). Without
  // a trial they pull.
  bool tries_pulling = true;
};

// TuningOverrides: values that a benchmark sets instead.
struct TuningOverrides {
  std::optional<Duration> spin = {};
  std::optional<std::size_t> stage_bytes = {};
  std::optional<std::size_t> small_reduce_bytes = {};
  std::optional<std::size_t> direct_chunk_bytes = {};
  std::optional<std::size_t> in_place_bytes = {};
  std::optional<std::size_t> repeated_bytes = {};
  std::optional<std::size_t> stream_bytes = {};
  std::optional<std::size_t> pull_bytes = {};  // without a trial, unless tries_pulling
  bool tries_pulling = false;
};

// TuningCase: the properties of a group's layout that the choices depend on; the same on all its
// ranks.
struct TuningCase {
  bool is_crowded = false;  // some machine has more ranks than cores
  int nodes = 1;
  std::size_t cache_bytes = 0;  // second-level cache of a core; 0: unknown
};
CpuTuning choose_tuning(const TuningCase& group, const TuningOverrides& wish = {});

}  // namespace ddprun
