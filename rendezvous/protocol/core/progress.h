// Progress: how far a training is, and how long the rest of it will take, for people. Pure; any
// thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/clock.h"

namespace ddprun {

struct Progress {
  std::optional<std::int64_t> step = {};
  std::optional<std::int64_t> total_steps = {};  // of the whole training
  std::optional<double> steps_per_second = {};
  std::optional<Duration> left = {};  // time_left(), while the job runs
};

// Returns how long the steps after progress.step take at this rate. nullopt: that is not known, no
// step is left, or it is longer than kMaxTime.
std::optional<Duration> time_left(const Progress& progress);

// Returns "step 1,200 of 10,000, 3.4 steps/s, about 43 min left". What is not known is left out.
// Without a step the text is empty.
std::string progress_text(const Progress& progress);

}  // namespace ddprun
