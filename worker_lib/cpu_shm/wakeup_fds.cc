#include "worker_lib/cpu_shm/wakeup_fds.h"

#include <unistd.h>

#include <cerrno>
#include <cstdint>

namespace ddprun {

// EAGAIN means that the counter of pending notifications is full: the rank wakes anyway.
void WakeupFds::notify(int local) const {
  const std::uint64_t one = 1;
  while (write(wakeups_[local].get(), &one, sizeof one) < 0 && errno == EINTR) {
  }
}

void WakeupFds::notify_all() const {
  for (std::size_t local = 0; local < wakeups_.size(); ++local) notify(static_cast<int>(local));
}

void WakeupFds::drain() const {
  std::uint64_t times = 0;
  while (read(own_fd(), &times, sizeof times) < 0 && errno == EINTR) {
  }
}

}  // namespace ddprun
