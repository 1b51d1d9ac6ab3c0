// CpuTuning: the cpu engine's choices that only measuring can make. `benchmarks/collectives.py --only
// tuning` runs the engine with others; docs/collectives.md has the table. No result depends on them. Plain
// values and a pure function; any thread.
#pragma once

#include <cstddef>
#include <optional>

#include "base/clock.h"

namespace ddprun {

struct CpuTuning {
  Duration spin{};  // of a wait before it sleeps, where every rank of the machine has a core
  std::size_t stage_bytes = 0;  // at the least
  // Bytes a rank contributes to a reduction, times the ranks of the node, up to which a second meeting
  // costs more than it saves: everybody folds all of it.
  std::size_t small_reduce_bytes = 0;
  // Of an all_reduce of two ranks that is of long_direct_bytes or more: what does not stay in the caches
  // before it is read again comes from memory twice, so the chunks in hand have to fit the second-level
  // cache.
  std::size_t direct_chunk_bytes = 0;
  std::size_t long_direct_bytes = 0;
  // Bytes of a shared tensor below which staging, with one meeting less, is quicker.
  std::size_t in_place_bytes = 0;
  // Bytes that a node may send beyond the least there is, so that every node can fold all and results need
  // no second journey.
  std::size_t repeated_bytes = 0;
  // Bytes of all that a rank gives and gets in a call from which on they do not stay in the caches, so results
  // are written past them (cpu_kernels/stream_copy.h), and staging is quicker again than pulling.
  std::size_t stream_bytes = 0;
  // Bytes from one rank to another from which on an all_gather and an all_to_all on one node may copy them
  // once, out of its private memory, and stage nothing. (A broadcast is quicker staged: the root copies, too.)
  std::size_t pull_bytes = 0;
  // Whether they find out by trial (cpu_calls/core/pull_trial.h) if they do; else they do.
  bool tries_pulling = true;
};

// What a program that measures wants otherwise.
struct TuningWish {
  std::optional<Duration> spin = {};
  std::optional<std::size_t> stage_bytes = {};
  std::optional<std::size_t> small_reduce_bytes = {};
  std::optional<std::size_t> direct_chunk_bytes = {};
  std::optional<std::size_t> in_place_bytes = {};
  std::optional<std::size_t> repeated_bytes = {};
  std::optional<std::size_t> stream_bytes = {};
  std::optional<std::size_t> pull_bytes = {};  // no trial then, but where it is wished for, too
  bool tries_pulling = false;
};

// What of a group's layout the choices depend on: the same on all its ranks.
struct TuningCase {
  bool is_crowded = false;  // some machine has more ranks than cores
  int nodes = 1;
  std::size_t cache_bytes = 0;  // second level, of a core; 0: unknown
};
CpuTuning choose_tuning(const TuningCase& group, const TuningWish& wish = {});

}  // namespace ddprun
