// LineBudget: how often a line may be logged that strangers can provoke.
//
// A burst of lines per period passes; the first line of a later period says how many were held
// back. A value machine without a clock; one owner thread.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>

#include "base/clock.h"

namespace ddprun {

class LineBudget {
 public:
  LineBudget(int lines, Duration period) : lines_(lines), period_(period) {}

  // How many lines were held back since the last one that passed, if this one passes; nullopt if it
  // is to be held back, too.
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
