// What a group that has ended says, whichever backend it has. Pure; any thread.
#pragma once

#include <string>

#include "base/error.h"

namespace ddprun {

// Why the calls end that are in flight when their ProcessGroup goes.
inline constexpr const char* kGroupDestroyed = "the process group was destroyed";

// What is wrong where a group was given up.
inline std::string group_aborted(const std::string& reason) {
  return "the group was aborted: " + reason;
}

// What every call gets after the group's first failure, with the rank that was to blame for that.
inline Error group_finished(std::string doing, const Error& first) {
  return Error{.kind = ErrorKind::kStopped,
               .doing = std::move(doing),
               .cause = "the group is finished since " + first.message(),
               .peer_rank = first.peer_rank};
}

}  // namespace ddprun
