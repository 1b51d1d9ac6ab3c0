// eventually(): how a test waits for a condition that nobody announces. With a deadline, always.
#pragma once

#include <chrono>
#include <thread>

#include "base/clock.h"

namespace ddprun::testing_support {

inline constexpr Duration kPatience = std::chrono::seconds(20);

// Waits until the condition holds; false when the time is over. Looks again every few milliseconds.
template <class Condition>
bool eventually(Condition&& condition, Duration allowed = kPatience) {
  const TimePoint deadline = BootClock::now() + allowed;
  while (!condition()) {
    if (BootClock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

}  // namespace ddprun::testing_support
