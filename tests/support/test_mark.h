// TestMark: a variable in the environment of all processes that a test starts, by which they are
// found again, also when nobody is their parent any more.
#pragma once

#include <sys/types.h>

#include <string>
#include <utility>
#include <vector>

#include "base/random_id.h"
#include "tests/support/child_process.h"

namespace ddprun::testing_support {

class TestMark {
 public:
  // For ChildProcess::Options::variables.
  std::pair<std::string, std::string> variable() const { return {kName, value_}; }
  std::vector<pid_t> processes() const { return processes_with(kName, value_); }

 private:
  static constexpr const char* kName = "DDPRUN_TEST_MARK";
  const std::string value_ = random_hex(8);
};

}  // namespace ddprun::testing_support
