// keep_earlier(): finds the earliest of several times. Pure; any thread.
#pragma once

#include <optional>

#include "base/clock.h"

namespace ddprun {

// Sets `earliest` to `time` if that is earlier. nullopt: never.
inline void keep_earlier(std::optional<TimePoint>& earliest, std::optional<TimePoint> time) {
  if (time && (!earliest || *time < *earliest)) earliest = time;
}

}  // namespace ddprun
