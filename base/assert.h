// DDPRUN_ASSERT: checks an invariant of ddprun itself. It stays on in release builds.
//
// Use it for what the code guarantees to itself. What users, peers or the operating system can
// get wrong is an Error (base/error.h). Any thread. If the check fails, it does not return.
#pragma once

#include <cstdio>
#include <cstdlib>

namespace ddprun::detail {

[[noreturn]] inline void assertion_failed(const char* condition, const char* file, int line,
                                          const char* reason) noexcept {
  std::fprintf(stderr, "ddprun: internal error at %s:%d: %s (%s). Please report this.\n", file,
               line, reason, condition);
  std::abort();
}

}  // namespace ddprun::detail

// reason: a string literal that says which invariant was broken.
#define DDPRUN_ASSERT(condition, reason)                                            \
  do {                                                                              \
    if (!(condition)) [[unlikely]]                                                  \
      ::ddprun::detail::assertion_failed(#condition, __FILE__, __LINE__, (reason)); \
  } while (false)
