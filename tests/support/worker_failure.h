// Reads what worker_test_rank (tests/worker_lib/context/worker_main.cc) prints of the DistError
// that ended it.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <sstream>
#include <string>

#include "base/clock.h"
#include "ddprun/error.h"

namespace ddprun::testing_support {

// The exit code of a worker_test_rank that ended with a DistError.
inline constexpr int kFailedAsExpected = 3;

struct WorkerFailure {
  DistError::Kind kind;
  int peer;
  TimePoint time;
  std::string what;
};

// Returns the line that failure_in() reads: "failed KIND PEER TIME_NS what()".
inline std::string failure_line(const DistError& failure) {
  return "failed " + std::to_string(static_cast<int>(failure.kind())) + " " +
         std::to_string(failure.peer_rank()) + " " +
         std::to_string(BootClock::now().time_since_epoch().count()) + " " + failure.what();
}

inline WorkerFailure failure_in(const std::string& output) {
  const std::size_t begin = output.find("failed ");
  if (begin == std::string::npos) {
    ADD_FAILURE() << "no failure in:\n" << output;
    return {};
  }
  std::istringstream line(output.substr(begin + 7));
  int kind = 0;
  std::int64_t time_ns = 0;
  WorkerFailure failure;
  line >> kind >> failure.peer >> time_ns;
  std::getline(line, failure.what);
  failure.kind = static_cast<DistError::Kind>(kind);
  failure.time = TimePoint(Duration(time_ns));
  return failure;
}

}  // namespace ddprun::testing_support
