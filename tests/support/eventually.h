// How a test waits: for a condition, and always with a deadline.
#pragma once

#include <chrono>

#include "base/clock.h"

namespace ddprun::testing_support {

inline constexpr Duration kPatience = std::chrono::seconds(20);

// Lets time pass that must pass: until the moment of a random fault, or for the length of an
// outage. Never use it to guess how long something takes.
inline void let_pass(Duration duration) {
  timespec left = to_timespec(duration);
  while (nanosleep(&left, &left) != 0) {
  }
}

// Returns the point in time this long after now.
inline TimePoint in(Duration duration) { return BootClock::now() + duration; }

// Waits until the condition holds. Returns false if the time is over. Checks the condition every
// few milliseconds.
template <class Condition>
bool eventually(Condition&& condition, Duration allowed = kPatience) {
  const TimePoint deadline = in(allowed);
  while (!condition()) {
    if (BootClock::now() > deadline) return false;
    let_pass(std::chrono::milliseconds(2));
  }
  return true;
}

// As eventually(), for a condition that handlers of an io_context make true. Runs the io_context
// on the calling thread while it waits.
template <class IoContext, class Condition>
bool eventually_on(IoContext& io, Condition&& condition, Duration allowed = kPatience) {
  const TimePoint deadline = in(allowed);
  while (!condition()) {
    if (BootClock::now() > deadline) return false;
    if (io.run_one_for(std::chrono::milliseconds(100)) > 0 || !io.stopped()) continue;
    io.restart();  // it had no work left
    let_pass(std::chrono::milliseconds(2));
  }
  return true;
}

}  // namespace ddprun::testing_support
