#include "base/poll_until.h"

#include <algorithm>

namespace ddprun {

bool poll_until(std::span<pollfd> watched, TimePoint deadline) {
  for (;;) {
    const Duration left = std::max(Duration::zero(), deadline - BootClock::now());
    const timespec timeout = to_timespec(left);
    if (::ppoll(watched.data(), watched.size(), &timeout, nullptr) > 0) return true;
    if (BootClock::now() >= deadline) return false;
  }
}

}  // namespace ddprun
