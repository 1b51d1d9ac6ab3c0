// Texts and errors of a group that has ended, the same for every backend. Pure. Thread-safe.
#pragma once

#include <string>

#include "base/error.h"

namespace ddprun {

// The cause for calls that are in flight when their ProcessGroup is destroyed.
inline constexpr const char* kGroupDestroyed = "the process group was destroyed";

// Returns the cause for a group that was aborted.
inline std::string group_aborted(const std::string& reason) {
  return "the group was aborted: " + reason;
}

// Returns the error of every call after the group's first failure. It keeps the rank that was to
// blame for that failure.
inline Error group_finished(std::string doing, const Error& first) {
  return Error{.kind = ErrorKind::kStopped,
               .doing = std::move(doing),
               .cause = "the group has ended: " + first.message(),
               .peer_rank = first.peer_rank};
}

}  // namespace ddprun
