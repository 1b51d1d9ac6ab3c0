// TuningOverrides: values that a test or a benchmark sets instead of those that a CpuGroup chooses
// (CpuGroupOptions::tune). A value type.
#pragma once

#include <cstddef>
#include <optional>

#include "worker_lib/cpu_kernels/tuning.h"

namespace ddprun {

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

  void operator()(CpuTuning& tuning) const {
    const auto set = [](auto& value, const auto& wanted) { value = wanted.value_or(value); };
    set(tuning.spin, spin);
    set(tuning.stage_bytes, stage_bytes);
    set(tuning.small_reduce_bytes, small_reduce_bytes);
    set(tuning.direct_chunk_bytes, direct_chunk_bytes);
    set(tuning.in_place_bytes, in_place_bytes);
    set(tuning.repeated_bytes, repeated_bytes);
    set(tuning.stream_bytes, stream_bytes);
    set(tuning.pull_bytes, pull_bytes);
    tuning.tries_pulling = tries_pulling || !pull_bytes;
  }
};

}  // namespace ddprun
