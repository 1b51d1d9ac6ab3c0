// futex_wait and futex_wake on a word in memory that several processes share. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/clock.h"

namespace ddprun {

// Sleeps while the word holds `expected`, at most until the deadline. May return early without a
// reason, so the caller must check its condition again.
void futex_wait(std::atomic<std::uint32_t>& word, std::uint32_t expected, TimePoint deadline);

// Wakes all threads that sleep on the word.
void futex_wake(std::atomic<std::uint32_t>& word);

}  // namespace ddprun
