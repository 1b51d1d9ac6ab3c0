// Whether a sanitizer (DDPRUN_SANITIZE) is at work. CMake defines DDPRUN_SANITIZED, because the
// compilers name their own macros differently.
#pragma once

namespace ddprun::testing_support {

#if defined(DDPRUN_SANITIZED)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

// Returns the number of rounds of a test of random events: a twentieth under a sanitizer, where
// each round takes fifty times as long.
constexpr int rounds(int ordinary) { return kSanitized ? (ordinary + 19) / 20 : ordinary; }

}  // namespace ddprun::testing_support
