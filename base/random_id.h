// Random identifiers and seeds from the kernel, for what must differ across hosts. Any thread.
#pragma once

#include <cstdint>
#include <string>

namespace ddprun {

// `bytes` random bytes as lower-case hex, twice as many characters.
std::string random_hex(int bytes);

// For an Rng whose sequence nobody needs to repeat: the pauses of a client.
std::uint64_t random_seed();

}  // namespace ddprun
