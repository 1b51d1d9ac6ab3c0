// Computes the shares of a training step from its parts.
//
// Value types; one owner thread.
#pragma once

#include <optional>

#include "base/clock.h"
#include "base/step_shares.h"

namespace ddprun {

// StepParts: the time from the end of one synchronised pass to the end of the next, and its parts.
struct StepParts {
  Duration whole = {};
  std::optional<Duration> data = {};  // nullopt: no loader tells
  Duration forward = {};              // without what ranks exchange before it
  Duration backward = {};             // of all passes, without `communication`
  Duration communication = {};        // during which nothing was computed
  Duration checkpoint = {};
};

// StepMeans: running means, in which the last kSteps steps count most. Long steps count more than
// short ones. So a checkpoint now and then has the share that it costs.
class StepMeans {
 public:
  static constexpr int kSteps = 16;

  // Adds a step and returns the shares until now. Waits for data and checkpoints that overlap with
  // passes, as those of other threads do, count only as far as the step has time left.
  StepShares add(const StepParts& step);

 private:
  struct Means {
    double whole = 0, data = 0, forward = 0, backward = 0, communication = 0, checkpoint = 0;
  };
  Means means_;  // nanoseconds
  int steps_ = 0;
};

}  // namespace ddprun
