#include "base/fail.h"

#include "base/log.h"

namespace ddprun {

int fail(const std::string& program, const Error& error, ExitCode code) {
  Logger(program, stderr_sink()).error(error.message());
  return to_int(code);
}

}  // namespace ddprun
