// LineBudget: limits how often a line is logged that unauthenticated peers can cause.
//
// A number of lines per period passes. The first line of a later period tells how many were
// suppressed. A value type without a clock; one owner thread.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>

#include "base/clock.h"

namespace ddprun {

class LineBudget {
 public:
  LineBudget(int lines, Duration period) : lines_(lines), period_(period) {}

  // Returns how many lines were suppressed since the last one that passed, if this one passes;
  // nullopt: suppress this one, too.
  std::optional<std::uint64_t> admit(TimePoint now) {
    if (!begin_ || now - *begin_ >= period_) {
      begin_ = now;
      used_ = 0;
    }
    if (used_ == lines_) {
      ++held_back_;
      return std::nullopt;
    }
    ++used_;
    return std::exchange(held_back_, 0);
  }

 private:
  int lines_;
  Duration period_;
  std::optional<TimePoint> begin_;
  int used_ = 0;
  std::uint64_t held_back_ = 0;
};

}  // namespace ddprun
