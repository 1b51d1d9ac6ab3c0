// fail(): reports the error with which a program ends.
#pragma once

#include <string>

#include "base/error.h"
#include "base/exit_codes.h"

namespace ddprun {

// Writes one line, "<program>: error: <message>", to standard error. Returns the value for
// main() to return. Any thread.
int fail(const std::string& program, const Error& error, ExitCode code);

// Returns kUsage if an invalid value was given, and `otherwise` if something else went wrong.
inline ExitCode usage_or(ExitCode otherwise, const Error& error) {
  return error.kind == ErrorKind::kInvalidArgument ? ExitCode::kUsage : otherwise;
}

}  // namespace ddprun
