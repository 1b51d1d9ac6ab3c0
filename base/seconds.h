// How options, messages and metrics count time. Pure; any thread.
#pragma once

#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/result.h"

namespace ddprun {

// The longest that an option or a message may say: 31 years, which no clock here overflows with.
inline constexpr Duration kMaxTime = std::chrono::seconds(1'000'000'000);

// Seconds with a fraction, "30" or "0.5", up to kMaxTime. kInvalidArgument: the text is anything
// else.
Result<Duration> parse_seconds(std::string_view text);

// The shortest text that parse_seconds() reads as the same time.
std::string in_seconds(Duration duration);

}  // namespace ddprun
