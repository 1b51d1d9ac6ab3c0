// StepRate: computes how many steps per second workers report, for people who watch: the mean
// of the last ten seconds. Owned by StatusReporter, on its thread. Pure: time is an argument.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>

#include "base/clock.h"

namespace ddprun {

class StepRate {
 public:
  static constexpr Duration kSpan = std::chrono::seconds(10);

  // Records the newest step. nullopt: none was reported yet, or none in this generation.
  void see(std::optional<std::int64_t> step, TimePoint now) {
    if (!step || (!seen_.empty() && *step < seen_.back().step)) seen_.clear();
    if (!step) return;
    seen_.push_back({*step, now});
    while (seen_.size() > 2 && seen_[1].when + kSpan <= now) seen_.pop_front();
  }

  std::optional<std::int64_t> step() const {
    return seen_.empty() ? std::nullopt : std::optional(seen_.back().step);
  }
  // Returns steps per second. nullopt: not known yet.
  std::optional<double> rate() const {
    if (seen_.size() < 2 || seen_.back().when == seen_.front().when) return std::nullopt;
    const std::chrono::duration<double> span = seen_.back().when - seen_.front().when;
    const auto first = static_cast<double>(seen_.front().step);  // programs may report any number
    return (static_cast<double>(seen_.back().step) - first) / span.count();
  }

 private:
  struct Seen {
    std::int64_t step;
    TimePoint when;
  };
  std::deque<Seen> seen_;
};

}  // namespace ddprun
