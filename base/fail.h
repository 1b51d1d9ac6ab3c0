// fail(): how a program ends that cannot do what it was asked to do.
#pragma once

#include <string>

#include "base/error.h"
#include "base/exit_codes.h"

namespace ddprun {

// Writes one line, "<program>: error: <message>", to standard error. Returns what main() shall
// return. Any thread.
int fail(const std::string& program, const Error& error, ExitCode code);

}  // namespace ddprun
