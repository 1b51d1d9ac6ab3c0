// The random moments at which a test's faults come. Their seed is the same in every run, so that a
// red build can be run again; DDPRUN_TEST_SEED gives another one.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <string>

#include "base/clock.h"
#include "base/rng.h"

namespace ddprun::testing_support {

inline std::uint64_t number_from(const char* variable, std::uint64_t unless_given) {
  const char* given = std::getenv(variable);
  return given ? std::strtoull(given, nullptr, 10) : unless_given;
}
inline std::uint64_t test_seed(std::uint64_t unless_given) {
  return number_from("DDPRUN_TEST_SEED", unless_given);
}

// A random duration below this one.
inline Duration up_to(Duration longest, Rng& rng) {
  return Duration(rng.below(static_cast<std::uint64_t>(longest.count())));
}

// For a SCOPED_TRACE: what a failure says.
inline std::string seed_text(std::uint64_t seed) {
  return "replay: DDPRUN_TEST_SEED=" + std::to_string(seed);
}

}  // namespace ddprun::testing_support
