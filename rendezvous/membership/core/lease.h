// LeaseTimes: how long a node may be silent (--lease), and how often it sends a heartbeat
// (--heartbeat-interval), as ddprun and ddp-rendezvous accept them. Pure; any thread.
#pragma once

#include <optional>
#include <string_view>

#include "base/clock.h"
#include "base/result.h"
#include "base/worker_env.h"

namespace ddprun {

// A shorter lease would expire on a busy machine. A longer one would notice a lost node too
// late.
inline constexpr Duration kShortestLease = std::chrono::milliseconds(500);
inline constexpr Duration kLongestLease = std::chrono::hours(1);

struct LeaseTimes {
  Duration lease = kDefaultLease;
  std::optional<Duration> given_heartbeat;  // nullopt: it is derived from the lease

  // Returns the agent's patience. An agent without an answer for this time ends its workers,
  // so that they are gone when the lease expires.
  Duration patience() const { return lease / 5 * 4; }
  // Returns the time between two heartbeats.
  Duration heartbeat() const { return given_heartbeat.value_or(lease / 5); }
  // Limits of the heartbeat interval. An agent without an answer must ask twice more within
  // its patience, and must not have many unanswered heartbeats.
  Duration shortest_heartbeat() const { return lease / 50; }
  Duration longest_heartbeat() const { return lease / 4; }
};

// Parses a lease in seconds. kInvalidArgument: the text is not a valid lease.
Result<Duration> parse_lease(std::string_view text);

// Checks the times. kInvalidArgument: the given heartbeat does not fit the lease.
Result<void> check_lease(const LeaseTimes& times);

}  // namespace ddprun
