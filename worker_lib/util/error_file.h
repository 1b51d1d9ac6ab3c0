// The error file: describes an uncaught exception of a worker, for its launcher's report
// (TORCHELASTIC_ERROR_FILE, in the form of PyTorch's @record). Without LibTorch.
#pragma once

#include <string>

namespace ddprun {

// Makes the process write every uncaught exception to this file: its type, its text and where it
// was thrown. Then the process ends as it would have. Only the first call counts; an empty path
// has no effect. Any thread.
void write_uncaught_exceptions_to(const std::string& path);

}  // namespace ddprun
