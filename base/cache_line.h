// The size of a cache line. Constant; any thread.
#pragma once

#include <cstddef>

namespace ddprun {

// Data that two threads or processes write should lie on different lines. Each of them then
// keeps its line in its own cache.
inline constexpr std::size_t kCacheLineBytes = 64;

}  // namespace ddprun
