// Between the Errors of the worker library and the DistError that its public functions throw, both
// ways, without LibTorch. What LibTorch throws is error_bridge.h's part.
//
// Pure functions; any thread.
#pragma once

#include <string>
#include <string_view>
#include <type_traits>

#include "base/result.h"
#include "ddprun/error.h"

namespace ddprun {

// The public kind of an internal one. What a user cannot act upon differently shares a kind: a
// protocol breach is a broken connection to him, a missing file or a full disk a failed system.
DistError::Kind public_kind(ErrorKind kind);

// what() is error.message(); rank and times are kept.
DistError to_dist_error(const Error& error);

// The DistError read back, so that one that passes through inner layers keeps its kind and rank.
// Its times are in its words.
Error from_dist_error(const DistError& thrown, std::string_view doing);

// The value, or throws the DistError of the failure.
template <class T>
T value_or_throw(Result<T> result) {
  if (!result) throw to_dist_error(result.error());
  if constexpr (!std::is_void_v<T>) return *std::move(result);
}

}  // namespace ddprun
