// counted(): returns a number with its noun, for people: "1 worker", "2 workers". Pure; any
// thread.
#pragma once

#include <string>

namespace ddprun {

// noun: the singular of a noun whose plural ends with s.
template <class Number>
std::string counted(Number number, const std::string& noun) {
  return std::to_string(number) + " " + noun + (number == 1 ? "" : "s");
}

}  // namespace ddprun
