// ScopedFileCalls: puts other file calls into use, for all threads, until it is destroyed. At most
// one may exist. No call may be running when it is made or destroyed.
#pragma once

#include "base/assert.h"
#include "base/file_calls.h"

namespace ddprun {

class ScopedFileCalls {
 public:
  explicit ScopedFileCalls(FileCalls& calls) {
    DDPRUN_ASSERT(!replace_file_calls(&calls), "one test replaces the file calls at a time");
  }
  ~ScopedFileCalls() { replace_file_calls(nullptr); }
  ScopedFileCalls(const ScopedFileCalls&) = delete;
  ScopedFileCalls& operator=(const ScopedFileCalls&) = delete;
};

}  // namespace ddprun
