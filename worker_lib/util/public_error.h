// Converts the Errors of the worker library to the DistError that its public functions throw,
// and back, without LibTorch. error_bridge.h handles exceptions of LibTorch.
//
// There are two enums of kinds because they have different readers. DistError::Kind is a promise
// to users: programs compare it, so it stays small and stable. ErrorKind is for ddprun's own
// decisions: it also tells a protocol error from a broken connection, and a missing file from a
// full disk.
//
// Pure functions; any thread.
#pragma once

#include <string_view>
#include <type_traits>

#include "base/result.h"
#include "ddprun/error.h"

namespace ddprun {

// Returns the public kind of an internal one. Kinds that users handle in the same way share one:
// a protocol error is a kConnection, a missing file or a full disk is a kSystem.
DistError::Kind public_kind(ErrorKind kind);

// Converts an Error. what() is error.message(); rank and times are kept.
DistError to_dist_error(const Error& error);

// Converts a DistError back, so that one that passes through inner layers keeps its kind and
// rank. Its times are part of its text.
Error from_dist_error(const DistError& thrown, std::string_view doing);

// Returns the value, or throws the failure as a DistError.
template <class T>
T value_or_throw(Result<T> result) {
  if (!result) throw to_dist_error(result.error());
  if constexpr (!std::is_void_v<T>) return *std::move(result);
}

}  // namespace ddprun
