// Time as every part of ddprun counts it.
//
// BootClock is CLOCK_BOOTTIME: monotonic, and it goes on while the machine sleeps, so that a lease
// cannot outlive a suspended laptop. Clocks of different hosts are never compared. Cores take a
// TimePoint as an argument and never call now(); shells call it from any thread.
#pragma once

#include <time.h>

#include <chrono>
#include <cstdint>
#include <string>

namespace ddprun {

using Duration = std::chrono::nanoseconds;

struct BootClock {
  using duration = Duration;
  using rep = duration::rep;
  using period = duration::period;
  using time_point = std::chrono::time_point<BootClock>;
  static constexpr bool is_steady = true;

  static time_point now() noexcept;
};

using TimePoint = BootClock::time_point;

// What a longer timeout is cut to: a point in time that far away can still be computed.
inline constexpr Duration kLongestTimeout = std::chrono::hours(24 * 365);

// What system calls take; a negative duration has negative seconds.
timespec to_timespec(Duration duration);

// Whole milliseconds, as messages, variables and pages count time; what is below one is cut off.
constexpr std::int64_t to_ms(Duration duration) { return duration / std::chrono::milliseconds(1); }

// "250 ms", "4.0 s", "12.5 min": for people, not for parsing.
std::string to_text(Duration duration);

}  // namespace ddprun
