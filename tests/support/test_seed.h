// The random moments at which a test injects faults. The seed is the same in every run, so that
// a failed run can be repeated. DDPRUN_TEST_SEED sets another one.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "base/clock.h"
#include "base/rng.h"

namespace ddprun::testing_support {

inline std::uint64_t number_from(const char* variable, std::uint64_t unless_given) {
  const char* given = std::getenv(variable);
  return given ? std::strtoull(given, nullptr, 10) : unless_given;
}
// Returns the seed of the test, and prints it.
inline std::uint64_t test_seed(std::uint64_t unless_given) {
  const std::uint64_t seed = number_from("DDPRUN_TEST_SEED", unless_given);
  std::printf("seed: DDPRUN_TEST_SEED=%llu\n", static_cast<unsigned long long>(seed));
  std::fflush(stdout);
  return seed;
}

// Returns a random duration shorter than `longest`.
inline Duration up_to(Duration longest, Rng& rng) {
  return Duration(rng.below(static_cast<std::uint64_t>(longest.count())));
}

// Returns the text for a SCOPED_TRACE, which a failure prints.
inline std::string seed_text(std::uint64_t seed) {
  return "replay: DDPRUN_TEST_SEED=" + std::to_string(seed);
}

}  // namespace ddprun::testing_support
