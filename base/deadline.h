// Deadline: a time limit that starts when the Deadline is made. A value type; any thread.
#pragma once

#include <algorithm>
#include <string>
#include <utility>

#include "base/clock.h"
#include "base/error.h"

namespace ddprun {

class Deadline {
 public:
  // Starts the time limit. A negative time is raised to 0, a longer one than kLongestTimeout is cut
  // to it.
  explicit Deadline(Duration allowed)
      : started_(BootClock::now()),
        allowed_(std::clamp(allowed, Duration::zero(), kLongestTimeout)) {}

  Duration waited() const { return BootClock::now() - started_; }
  Duration allowed() const { return allowed_; }
  // Returns the point in time when the deadline passes.
  TimePoint when() const { return started_ + allowed_; }
  // Returns the time left; never negative.
  Duration remaining() const { return std::max(Duration::zero(), allowed_ - waited()); }
  bool passed() const { return remaining() == Duration::zero(); }

 private:
  TimePoint started_;
  Duration allowed_;
};

// Makes a kTimeout Error of this deadline.
inline Error timeout_error(std::string doing, std::string cause, const Deadline& deadline) {
  return timeout_error(std::move(doing), std::move(cause), deadline.waited(), deadline.allowed());
}

}  // namespace ddprun
