// Makes the status line at the bottom of a terminal. Pure; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/clock.h"
#include "base/ids.h"

namespace ddprun {

struct StatusFacts {
  std::string job;
  bool meets_others = false;  // the job may have other nodes
  Generation generation{-1};  // below 0: none has been formed yet
  int alive = 0;              // workers of this node
  int slots = 0;
  int world_size = 0;
  int restarts_left = 0;
  Duration elapsed{};                     // since ddprun was started
  std::optional<std::int64_t> step = {};  // the highest that workers of this node have reported
  std::optional<double> steps_per_second = {};
};

// Returns the line, for example (in one line):
// "ddprun none | generation 0 | 8 of 8 ranks alive | 3 restarts left |
//  step 1200, 12.5 steps/s | 0:12:34"
//
// If the job has other nodes, the ranks are those of this node, and the line says so. Steps are
// shown only where workers report them.
std::string status_line(const StatusFacts& facts);

}  // namespace ddprun
