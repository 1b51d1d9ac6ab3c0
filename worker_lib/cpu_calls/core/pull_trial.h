// PullTrial: whether long pieces get to the other ranks of a node sooner by one copy (cpu_calls/cma_collective.h) or
// by two through the segment. Which it is depends on the processor: with one the kernel copies twice as
// fast as two ranks hand lines to each other, with another half as fast. So the first calls of each class
// of sizes (a factor of two) take turns, and the rest goes the way that was quicker.
//
// Every rank keeps one, counts the same calls, and settles a class with what all ranks have found, so all
// choose the same. What they choose shows in no result. Pure; one owner at a time.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>

#include "base/clock.h"

namespace ddprun {

class PullTrial {
 public:
  // The first of each way meets cold memory and does not count.
  static constexpr int kCalls = 12;

  // Whether the next call with so many bytes from rank to rank is to pull.
  bool pulls(std::size_t bytes) const {
    const Class& one = class_of(bytes);
    return one.calls < kCalls ? one.calls % 2 == 1 : one.settled_for_pulling;
  }

  bool is_over(std::size_t bytes) const { return class_of(bytes).calls == kCalls; }

  // Whether the next call with so many bytes is the one after which the class is to be settled; it pulls.
  bool is_last(std::size_t bytes) const { return class_of(bytes).calls == kCalls - 1; }

  // Whether this rank has seen pulling to be at least as quick as staging.
  bool is_quicker(std::size_t bytes) const {
    const Class& one = class_of(bytes);
    return one.pulled <= one.staged;
  }

  // What pulls() was asked for has been done, by all ranks, and has taken this one so long. REQUIRES: the
  // trial is not over.
  void took(std::size_t bytes, Duration time) {
    Class& one = class_of(bytes);
    Duration& best = one.calls % 2 == 1 ? one.pulled : one.staged;
    if (one.calls >= 2) best = std::min(best, time);
    ++one.calls;
  }

  // After the last call of the trial.
  void settle(std::size_t bytes, bool all_are_quicker) {
    class_of(bytes).settled_for_pulling = all_are_quicker;
  }

 private:
  struct Class {
    int calls = 0;
    Duration pulled = Duration::max();  // the best of them
    Duration staged = Duration::max();
    bool settled_for_pulling = false;
  };
  static std::size_t place_of(std::size_t bytes) {
    return static_cast<std::size_t>(std::bit_width(bytes));
  }
  const Class& class_of(std::size_t bytes) const { return classes_[place_of(bytes)]; }
  Class& class_of(std::size_t bytes) { return classes_[place_of(bytes)]; }

  std::array<Class, 65> classes_{};
};

}  // namespace ddprun
