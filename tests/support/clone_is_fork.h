// Whether a sanitizer ends a test that starts a worker in this process. Such a test is skipped.
#pragma once

namespace ddprun::testing_support {

#if defined(__clang__)
inline constexpr bool kCloneIsFork = __has_feature(thread_sanitizer);
#else
inline constexpr bool kCloneIsFork = false;
#endif
inline constexpr const char* kNoSharedClone =
    "clang's ThreadSanitizer treats every clone() as a fork, and ends if the child shares memory";

}  // namespace ddprun::testing_support
