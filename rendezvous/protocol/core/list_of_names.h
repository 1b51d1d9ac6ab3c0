// list_of(): formats names for people and shows only the first ones of many. Pure; any thread.
#pragma once

#include <string>
#include <vector>

#include "base/joined.h"

namespace ddprun {

inline constexpr std::size_t kNamesShown = 5;

// Returns the first kNamesShown names as "a, b, c", and " and 7 more" if there are others.
inline std::string list_of(const std::vector<std::string>& names) {
  return joined_up_to(names, kNamesShown);
}

}  // namespace ddprun
