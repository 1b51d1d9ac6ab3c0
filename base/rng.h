// Rng: a seeded random generator whose sequence is the same on every platform.
//
// The standard specifies std::mt19937_64 but not the results of its distributions, so the two
// draws that ddprun needs are here. Cores get an Rng as an argument: there is no global one.
// One owner thread.
#pragma once

#include <cstdint>
#include <random>

#include "base/assert.h"

namespace ddprun {

class Rng {
 public:
  explicit Rng(std::uint64_t seed) : engine_(seed) {}

  std::uint64_t next() { return engine_(); }

  // Returns a uniform number in 0..bound-1. The modulo bias (below bound / 2^64) does not
  // matter for jitter and tests.
  std::uint64_t below(std::uint64_t bound) {
    DDPRUN_ASSERT(bound > 0, "a draw needs at least one outcome");
    return engine_() % bound;
  }

  // Returns true with the given probability, 0..1.
  bool chance(double probability) {
    return static_cast<double>(engine_() >> 11) * 0x1.0p-53 < probability;
  }

 private:
  std::mt19937_64 engine_;
};

}  // namespace ddprun
