// PullTrial: finds out whether long pieces reach the other ranks of a node faster by one copy
// (cpu_calls/cma_collective.h) or by two copies through the segment. This depends on the
// processor. On one, the kernel copies twice as fast as two ranks pass cache lines to each
// other; on another, half as fast. So the first calls of each size class (a factor of two)
// alternate between both ways. The later calls use the faster way.
//
// Every rank has a trial of its own and counts the same calls. It settles a class with the
// results of all ranks, so all make the same choice. The choice never changes a result. Pure;
// one owner at a time.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>

#include "base/clock.h"

namespace ddprun {

class PullTrial {
 public:
  // The first call of each way finds cold memory and does not count.
  static constexpr int kCalls = 12;

  // Returns whether the next call must pull.
  bool pulls() const { return calls_ < kCalls ? calls_ % 2 == 1 : settled_for_pulling_; }

  bool is_over() const { return calls_ == kCalls; }

  // Returns whether the next call is the last one of the trial; it pulls.
  bool is_last() const { return calls_ == kCalls - 1; }

  // Returns whether pulling was at least as fast as staging on this rank.
  bool is_quicker() const { return pulled_ <= staged_; }

  // Records that all ranks have made the call that pulls() was asked for, and its time on this
  // rank. REQUIRES: the trial is not over.
  void took(Duration time) {
    Duration& best = calls_ % 2 == 1 ? pulled_ : staged_;
    if (calls_ >= 2) best = std::min(best, time);
    ++calls_;
  }

  // Settles the choice. Call it after the last call of the trial.
  void settle(bool all_are_quicker) { settled_for_pulling_ = all_are_quicker; }

 private:
  int calls_ = 0;
  Duration pulled_ = Duration::max();  // the best time
  Duration staged_ = Duration::max();
  bool settled_for_pulling_ = false;
};

// PullTrials: the trials of all size classes.
class PullTrials {
 public:
  // Returns the trial of calls with `bytes` bytes from rank to rank.
  PullTrial& of(std::size_t bytes) { return trials_[std::bit_width(bytes)]; }

 private:
  std::array<PullTrial, 65> trials_;
};

}  // namespace ddprun
