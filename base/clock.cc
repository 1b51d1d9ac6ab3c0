#include "base/clock.h"

#include "base/assert.h"
#include "base/printed.h"

namespace ddprun {

TimePoint BootClock::now() noexcept {
  timespec ts{};
  DDPRUN_ASSERT(clock_gettime(CLOCK_BOOTTIME, &ts) == 0,
                "CLOCK_BOOTTIME exists since Linux 2.6.39");
  return TimePoint(std::chrono::seconds(ts.tv_sec) + std::chrono::nanoseconds(ts.tv_nsec));
}

timespec to_timespec(Duration duration) {
  const auto seconds = std::chrono::floor<std::chrono::seconds>(duration);
  return {.tv_sec = seconds.count(), .tv_nsec = (duration - seconds).count()};
}

std::string to_text(Duration duration) {
  if (duration < Duration::zero()) return "-" + to_text(-duration);
  const double seconds = std::chrono::duration<double>(duration).count();
  if (seconds < 0.001) return printed("%.0f us", seconds * 1e6);
  if (seconds < 1) return printed("%.0f ms", seconds * 1e3);
  if (seconds < 300) return printed("%.1f s", seconds);
  return printed("%.1f min", seconds / 60);
}

}  // namespace ddprun
