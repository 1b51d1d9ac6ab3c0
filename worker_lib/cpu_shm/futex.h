// futex_wait and futex_wake on a word in memory that several processes share. Any thread.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/clock.h"

namespace ddprun {

// Sleeps while the word holds `expected`, at most until the deadline. May return early for no
// reason: the caller looks at what it waits for again.
void futex_wait(std::atomic<std::uint32_t>& word, std::uint32_t expected, TimePoint deadline);

// Wakes whoever sleeps on the word.
void futex_wake(std::atomic<std::uint32_t>& word);

}  // namespace ddprun
