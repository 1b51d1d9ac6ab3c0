// parse_seconds(): how options count time. Pure; any thread.
#pragma once

#include <string_view>

#include "base/clock.h"
#include "base/result.h"

namespace ddprun {

// Seconds with a fraction, "30" or "0.5", up to 1e9. kInvalidArgument: the text is anything else.
Result<Duration> parse_seconds(std::string_view text);

}  // namespace ddprun
