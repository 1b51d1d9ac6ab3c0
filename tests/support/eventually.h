// How a test waits: for a condition, with a deadline, always.
#pragma once

#include <chrono>

#include "base/clock.h"

namespace ddprun::testing_support {

inline constexpr Duration kPatience = std::chrono::seconds(20);

// Time that passes because it must: the moment of a random fault, the length of an outage. Never a
// guess at how long something takes.
inline void let_pass(Duration duration) {
  timespec left = to_timespec(duration);
  while (nanosleep(&left, &left) != 0) {
  }
}

// The point in time so far from now.
inline TimePoint in(Duration duration) { return BootClock::now() + duration; }

// Waits until the condition holds; false when the time is over. Looks again every few milliseconds.
template <class Condition>
bool eventually(Condition&& condition, Duration allowed = kPatience) {
  const TimePoint deadline = in(allowed);
  while (!condition()) {
    if (BootClock::now() > deadline) return false;
    let_pass(std::chrono::milliseconds(2));
  }
  return true;
}

// The same for what an io_context of the test's own thread brings about: lets its loop turn.
template <class IoContext, class Condition>
bool eventually_on(IoContext& io, Condition&& condition, Duration allowed = kPatience) {
  const TimePoint deadline = in(allowed);
  while (!condition()) {
    if (BootClock::now() > deadline) return false;
    if (io.run_one_for(std::chrono::milliseconds(100)) > 0 || !io.stopped()) continue;
    io.restart();  // it had nothing to do
    let_pass(std::chrono::milliseconds(2));
  }
  return true;
}

}  // namespace ddprun::testing_support
