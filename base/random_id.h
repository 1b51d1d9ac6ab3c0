// Makes random identifiers and seeds from the kernel's random numbers, for values that must
// differ across hosts. Any thread.
#pragma once

#include <cstdint>
#include <string>

namespace ddprun {

// Returns `bytes` random bytes as lower-case hex, which has twice as many characters.
std::string random_hex(int bytes);

// Returns a seed for an Rng whose sequence need not be repeatable, such as for a client's
// pauses.
std::uint64_t random_seed();

}  // namespace ddprun
