#include "rendezvous/membership/core/lease.h"

#include "base/concat.h"
#include "base/seconds.h"

namespace ddprun {

Result<Duration> parse_lease(std::string_view text) {
  Result<Duration> lease = parse_seconds(text);
  if (lease && (*lease < kShortestLease || *lease > kLongestLease)) {
    return invalid_value(text,
                         concat("expected seconds, from ", kShortestLease, " to ", kLongestLease));
  }
  return lease;
}

Result<void> check_lease(const LeaseTimes& times) {
  const Duration heartbeat = times.heartbeat();
  if (heartbeat >= times.shortest_heartbeat() && heartbeat <= times.longest_heartbeat()) return {};
  return invalid_value(in_seconds(heartbeat), "with --lease=" + in_seconds(times.lease) +
                                                  " expected seconds from " +
                                                  in_seconds(times.shortest_heartbeat()) + " to " +
                                                  in_seconds(times.longest_heartbeat()))
      .within("--heartbeat-interval");
}

}  // namespace ddprun
