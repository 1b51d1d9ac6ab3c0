// The error of an option without its value. All programs have this one wording.
#pragma once

#include <string_view>

#include "base/concat.h"
#include "base/error.h"

namespace ddprun {

// Makes a kInvalidArgument Error: "--listen: the value is missing (expected HOST:PORT)".
inline Error missing_value(std::string_view option, std::string_view expected) {
  return invalid_argument(concat("the value is missing (expected ", expected, ")")).within(option);
}

}  // namespace ddprun
