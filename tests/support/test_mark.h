// TestMark: an environment variable that all processes started by a test inherit. The test finds
// the processes by it, also when their parent has ended.
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
  TestMark() {}  // lets clang make a const object without an initializer
  // For ChildProcess::Options::variables.
  std::pair<std::string, std::string> variable() const { return {kName, value_}; }
  std::vector<pid_t> processes() const { return processes_with(kName, value_); }

 private:
  static constexpr const char* kName = "DDPRUN_TEST_MARK";
  const std::string value_ = random_hex(8);
};

}  // namespace ddprun::testing_support
