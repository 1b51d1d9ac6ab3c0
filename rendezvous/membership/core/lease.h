// --lease and --heartbeat-interval: for how long a node may be silent, and how often it speaks, as
// ddprun and ddp-rendezvous take it. Pure; any thread.
#pragma once

#include <optional>
#include <string_view>

#include "base/clock.h"
#include "base/result.h"
#include "base/worker_env.h"

namespace ddprun {

// Not so short that a busy machine misses it, nor so long that a lost node is never noticed.
inline constexpr Duration kShortestLease = std::chrono::milliseconds(500);
inline constexpr Duration kLongestLease = std::chrono::hours(1);

struct LeaseTimes {
  Duration lease = kDefaultLease;
  std::optional<Duration> given_heartbeat;  // nullopt: it follows from the lease

  // An agent that has no answer for so long ends its workers, so that they are gone when the lease is
  // over.
  Duration patience() const { return lease / 5 * 4; }
  // Between two heartbeats.
  Duration heartbeat() const { return given_heartbeat.value_or(lease / 5); }
  // What may be given: an agent that has had no answer asks twice more within its patience, and has
  // few heartbeats on their way.
  Duration shortest_heartbeat() const { return lease / 50; }
  Duration longest_heartbeat() const { return lease / 4; }
};

// In seconds. kInvalidArgument: the text is no such time.
Result<Duration> parse_lease(std::string_view text);

// kInvalidArgument: the heartbeat that was given does not go with the lease.
Result<void> check_lease(const LeaseTimes& times);

}  // namespace ddprun
