// The error file: what a worker says of an exception that nobody caught, for its launcher's report
// (TORCHELASTIC_ERROR_FILE, in the form of PyTorch's @record). Without LibTorch.
#pragma once

#include <string>

namespace ddprun {

// From now on an exception that nobody catches is written to this file, with its type, its words and
// where it was thrown, before the process ends as it would have. The first call counts; an empty
// path means that there is nobody to tell. Any thread.
void write_uncaught_exceptions_to(const std::string& path);

}  // namespace ddprun
