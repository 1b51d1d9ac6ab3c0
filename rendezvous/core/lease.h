// --lease: for how long a node may be silent, as ddprun and ddp-rendezvous take it. Pure; any
// thread.
#pragma once

#include <string_view>

#include "base/clock.h"
#include "base/result.h"

namespace ddprun {

// Not so short that a busy machine misses it, nor so long that a lost node is never noticed.
inline constexpr Duration kShortestLease = std::chrono::milliseconds(500);
inline constexpr Duration kLongestLease = std::chrono::hours(1);

// In seconds. kInvalidArgument: the text is no such time.
Result<Duration> parse_lease(std::string_view text);

}  // namespace ddprun
