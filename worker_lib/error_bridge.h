// The one place where the worker library's Errors become the DistError that its public functions
// throw, and where exceptions of LibTorch and the standard library become Errors.
//
// Pure functions; any thread.
#pragma once

#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "base/result.h"
#include "ddprun/error.h"

namespace ddprun {

// The public kind of an internal one. What a user cannot act upon differently shares a kind: a
// protocol breach is a broken connection to him, a missing file or a full disk a failed system.
DistError::Kind public_kind(ErrorKind kind);

// what() is error.message(); rank and times are kept.
DistError to_dist_error(const Error& error);

// The exception in flight as an Error; call it inside a catch block. LibTorch's backtraces are left
// out: the message is one line.
Error error_in_flight(std::string_view doing);

// Throws a DistError of this rank's own making. what: what was being done, and why it cannot be.
[[noreturn]] void refuse(const std::string& what,
                         DistError::Kind kind = DistError::Kind::kInvalidArgument,
                         int peer_rank = -1);

// The value, or throws the DistError of the failure.
template <class T>
T value_or_throw(Result<T> result) {
  if (!result) throw to_dist_error(result.error());
  if constexpr (!std::is_void_v<T>) return *std::move(result);
}

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
