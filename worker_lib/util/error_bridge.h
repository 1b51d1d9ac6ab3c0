// Converts errors at the boundary of the worker library. Its Errors become the DistError that
// public functions throw (public_error.h). Exceptions of LibTorch and the standard library become
// Errors.
//
// Pure functions; any thread.
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "ddprun/error.h"
#include "worker_lib/util/public_error.h"

namespace ddprun {

// Returns the exception that is being handled as an Error. REQUIRES: called inside a catch
// block. LibTorch's backtrace is left out, so that the message is one line.
Error error_in_flight(std::string_view doing);

// Throws a DistError that this rank itself detected. what: the operation, and why it cannot be
// done.
[[noreturn]] void refuse(const std::string& what,
                         DistError::Kind kind = DistError::Kind::kInvalidArgument,
                         int peer_rank = -1);

// Returns the same failure, with the operation `doing` in front of its text.
DistError within(const DistError& failure, const std::string& doing);

// Runs the body of a public function. Turns its exceptions into a DistError that names the
// operation. A DistError passes unchanged.
template <class Body>
auto with_dist_errors(std::string_view doing, Body&& body) {
  try {
    return std::forward<Body>(body)();
  } catch (const DistError&) {
    throw;
  } catch (...) {
    throw to_dist_error(error_in_flight(doing));
  }
}

}  // namespace ddprun
