// Deadline: a time that is allowed for something, running since the Deadline was made. A value type;
// any thread.
#pragma once

#include <algorithm>

#include "base/clock.h"

namespace ddprun {

class Deadline {
 public:
  // A negative time is cut to none, a longer one than kLongestTimeout to that.
  explicit Deadline(Duration allowed)
      : started_(BootClock::now()),
        allowed_(std::clamp(allowed, Duration::zero(), kLongestTimeout)) {}

  Duration waited() const { return BootClock::now() - started_; }
  Duration allowed() const { return allowed_; }
  // The point in time when it passes.
  TimePoint when() const { return started_ + allowed_; }
  // Never negative.
  Duration remaining() const { return std::max(Duration::zero(), allowed_ - waited()); }
  bool passed() const { return remaining() == Duration::zero(); }

 private:
  TimePoint started_;
  Duration allowed_;
};

}  // namespace ddprun
