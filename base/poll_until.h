// poll_until(): poll(2) with a deadline. Any thread.
#pragma once

#include <poll.h>

#include <span>

#include "base/clock.h"

namespace ddprun {

// Waits until a descriptor has an event or the deadline has passed. Returns false if the
// deadline has passed. Entries with fd -1 are skipped, as by poll(2).
bool poll_until(std::span<pollfd> watched, TimePoint deadline);

}  // namespace ddprun
