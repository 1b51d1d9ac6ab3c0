#include "worker_lib/cpu/poll_until.h"

#include <algorithm>

namespace ddprun {

bool poll_until(std::span<pollfd> watched, TimePoint deadline) {
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - BootClock::now());
    const auto wait_ms = std::clamp<std::chrono::milliseconds::rep>(left.count(), 0, 60'000);
    if (::poll(watched.data(), watched.size(), static_cast<int>(wait_ms)) > 0) return true;
    if (BootClock::now() >= deadline) return false;
  }
}

}  // namespace ddprun
