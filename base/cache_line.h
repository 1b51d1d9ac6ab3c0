// The size of a cache line. Constant; any thread.
#pragma once

#include <cstddef>

namespace ddprun {

// What two threads or processes write lies on different lines: each of them then keeps its own.
inline constexpr std::size_t kCacheLineBytes = 64;

}  // namespace ddprun
