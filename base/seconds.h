// Reads and writes times as options, messages and metrics have them. Pure; any thread.
#pragma once

#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/result.h"

namespace ddprun {

// The longest time of an option or a message: 31 years, with which no clock here overflows.
inline constexpr Duration kMaxTime = std::chrono::seconds(1'000'000'000);

// Parses seconds with a fraction, "30" or "0.5", up to kMaxTime. kInvalidArgument: the text is
// anything else.
Result<Duration> parse_seconds(std::string_view text);

// Returns the shortest text that parse_seconds() reads as the same time.
std::string in_seconds(Duration duration);

}  // namespace ddprun
