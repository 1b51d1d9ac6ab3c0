// How long the last steps of a node's workers took, and on what. The service asks for it by
// StepsDirective, the agent replies by StepReport, and the service finds the ranks that make the
// others wait (rendezvous/accounts/core/slow_search.h). Only durations are sent, because the clocks
// of nodes differ. Value types; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/step_shares.h"

namespace ddprun {

// Limits of a report and of a StepsDirective.
inline constexpr std::size_t kMaxReportedSteps = 64;
inline constexpr std::size_t kMaxReportedWorkers = 512;  // of a node
inline constexpr std::size_t kMaxSlowLines = 16;

// StepTimes: a step of all workers of a node.
struct StepTimes {
  std::int64_t step = 0;
  std::uint32_t whole_us = 0;              // of the worker for which it took longest
  std::vector<std::uint32_t> own_us = {};  // by local rank: without the waits for others

  friend bool operator==(const StepTimes&, const StepTimes&) = default;
};

// RankShares: what a rank spends its steps on.
struct RankShares {
  LocalRank local_rank;
  StepShares shares = {};

  friend bool operator==(const RankShares&, const RankShares&) = default;
};

// StepReport: agent to service. steps: in the order in which they were done. shares: of the ranks
// that know them, if StepsDirective has asked for them.
struct StepReport {
  Generation generation{-1};
  std::vector<StepTimes> steps = {};
  std::vector<RankShares> shares = {};

  friend bool operator==(const StepReport&, const StepReport&) = default;
};

// SlowRank: a rank that is slow.
struct SlowRank {
  LocalRank local_rank;
  std::string cost = {};  // "the others wait 12 % of each step"

  friend bool operator==(const SlowRank&, const SlowRank&) = default;
};

// StepsDirective: service to agent. It asks for the steps that the agent has not sent yet. All
// agents of a job are asked at the same time, so that they report the same steps.
struct StepsDirective {
  Generation generation{-1};
  int steps = 0;                        // the newest ones, at most this many
  bool asks_shares = false;             // the report should have the shares of steps
  std::vector<SlowRank> slow = {};      // all slow ranks of the agent's node
  std::vector<std::string> lines = {};  // news for the agent's user

  friend bool operator==(const StepsDirective&, const StepsDirective&) = default;
};

}  // namespace ddprun
