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

  // Returns whether the next call with `bytes` bytes from rank to rank must pull.
  bool pulls(std::size_t bytes) const {
    const Class& one = class_of(bytes);
    return one.calls < kCalls ? one.calls % 2 == 1 : one.settled_for_pulling;
  }

  bool is_over(std::size_t bytes) const { return class_of(bytes).calls == kCalls; }

  // Returns whether the next call with `bytes` bytes is the last one of its class's trial; it
  // pulls.
  bool is_last(std::size_t bytes) const { return class_of(bytes).calls == kCalls - 1; }

  // Returns whether pulling was at least as fast as staging on this rank.
  bool is_quicker(std::size_t bytes) const {
    const Class& one = class_of(bytes);
    return one.pulled <= one.staged;
  }

  // Records that all ranks have made the call that pulls() was asked for, and its time on this
  // rank. REQUIRES: the trial is not over.
  void took(std::size_t bytes, Duration time) {
    Class& one = class_of(bytes);
    Duration& best = one.calls % 2 == 1 ? one.pulled : one.staged;
    if (one.calls >= 2) best = std::min(best, time);
    ++one.calls;
  }

  // Call it after the last call of the trial.
  void settle(std::size_t bytes, bool all_are_quicker) {
    class_of(bytes).settled_for_pulling = all_are_quicker;
  }

 private:
  struct Class {
    int calls = 0;
    Duration pulled = Duration::max();  // the best time
    Duration staged = Duration::max();
    bool settled_for_pulling = false;
  };
  static std::size_t place_of(std::size_t bytes) { return std::bit_width(bytes); }
  const Class& class_of(std::size_t bytes) const { return classes_[place_of(bytes)]; }
  Class& class_of(std::size_t bytes) { return classes_[place_of(bytes)]; }

  std::array<Class, 65> classes_{};
};

}  // namespace ddprun
