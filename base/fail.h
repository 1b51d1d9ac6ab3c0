// fail(): how a program ends that cannot do what it was asked to do.
#pragma once

#include <string>

#include "base/error.h"
#include "base/exit_codes.h"

namespace ddprun {

// Writes one line, "<program>: error: <message>", to standard error. Returns what main() shall
// return. Any thread.
int fail(const std::string& program, const Error& error, ExitCode code);

// kUsage where somebody gave what cannot be meant, `otherwise` where something else went wrong.
inline ExitCode usage_or(ExitCode otherwise, const Error& error) {
  return error.kind == ErrorKind::kInvalidArgument ? ExitCode::kUsage : otherwise;
}

}  // namespace ddprun
