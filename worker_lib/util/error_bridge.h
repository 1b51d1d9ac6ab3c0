// How what goes wrong leaves the worker library: its Errors as the DistError that its public
// functions throw (public_error.h), exceptions of LibTorch and the standard library as Errors.
//
// Pure functions; any thread.
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "base/result.h"
#include "ddprun/error.h"
#include "worker_lib/util/public_error.h"

namespace ddprun {

// The exception in flight as an Error; call it inside a catch block. LibTorch's backtraces are left
// out: the message is one line.
Error error_in_flight(std::string_view doing);

// Throws a DistError of this rank's own making. what: what was being done, and why it cannot be.
[[noreturn]] void refuse(const std::string& what,
                         DistError::Kind kind = DistError::Kind::kInvalidArgument,
                         int peer_rank = -1);

// Returns the same failure with what was being done in front of its words.
DistError within(const DistError& failure, const std::string& doing);

// Runs a public function's body: what it throws leaves as a DistError that says what was being
// done. A DistError passes as it is.
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
