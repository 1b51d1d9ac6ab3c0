// RankRow: what an agent knows about one of its ranks at a moment, for people who watch the job.
// docs/reference/status.md describes the fields. Value types and pure functions; any thread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/step_shares.h"

namespace ddprun {

// Limits of what a service takes from agents and shows of a job.
inline constexpr std::size_t kMaxRankRows = 1000;
inline constexpr std::size_t kMaxRankTextBytes = 128;

struct RankRow {
  Rank rank;
  LocalRank local_rank;
  int pid = 0;        // 0: it never existed
  std::string state;  // "running", "stopped", or how it ended
  std::optional<std::int64_t> step = {};
  std::optional<std::int64_t> total_steps = {};  // of the training, above 0
  std::optional<double> steps_per_second = {};
  std::string collective = {};  // the present call or else the last one; empty: there was none
  std::optional<double> waiting_s = {};  // in the present call
  std::optional<double> cpu_percent = {};
  std::optional<std::int64_t> memory_bytes = {};
  std::optional<double> gpu_percent = {};
  std::optional<std::int64_t> gpu_memory_bytes = {};
  std::optional<std::int64_t> gpu_own_memory_bytes = {};  // the part that its process uses
  std::optional<StepShares> step_percent = {};
  std::string slow = {};  // why it counts as slow; empty: it does not

  friend bool operator==(const RankRow&, const RankRow&) = default;
};

// RankReport: the rows of one node, by rank.
struct RankReport {
  Generation generation{-1};  // in which its workers run
  std::vector<RankRow> rows = {};

  friend bool operator==(const RankReport&, const RankReport&) = default;
};

// Returns the highest step of all rows; nullopt: none has a step.
inline std::optional<std::int64_t> foremost_step(const std::vector<RankRow>& rows) {
  std::optional<std::int64_t> foremost;
  for (const RankRow& row : rows) foremost = std::max(foremost, row.step);
  return foremost;
}

}  // namespace ddprun
