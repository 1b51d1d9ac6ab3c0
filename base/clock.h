// The clock and the time types of all parts of ddprun.
//
// BootClock is CLOCK_BOOTTIME: it is monotonic, and it continues while the machine sleeps, so
// that a lease cannot outlive a suspended laptop. Clocks of different hosts are never compared.
// Cores take a TimePoint as an argument and never call now(). Shells call it from any thread.
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

// Longer timeouts are cut to this value. A point in time that far away can still be computed.
inline constexpr Duration kLongestTimeout = std::chrono::hours(24 * 365);

// Converts to the format of system calls. A negative duration has negative seconds.
timespec to_timespec(Duration duration);

// Returns whole milliseconds, the unit of messages, variables and pages. Fractions are cut off.
constexpr std::int64_t to_ms(Duration duration) { return duration / std::chrono::milliseconds(1); }

// Returns "250 ms", "4.0 s" or "12.5 min": for people, not for parsing.
std::string to_text(Duration duration);

}  // namespace ddprun
