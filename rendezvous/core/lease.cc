#include "rendezvous/core/lease.h"

#include "base/seconds.h"

namespace ddprun {

namespace {

Result<Duration> parse_between(std::string_view text, Duration least, Duration most,
                               const char* what) {
  Result<Duration> time = parse_seconds(text);
  if (time && (*time < least || *time > most)) {
    return invalid_argument("'" + std::string(text) + "' is no " + what + ": give seconds, from " +
                            to_text(least) + " to " + to_text(most));
  }
  return time;
}

}  // namespace

Result<Duration> parse_lease(std::string_view text) {
  return parse_between(text, kShortestLease, kLongestLease, "lease");
}

Result<Duration> parse_heartbeat(std::string_view text) {
  return parse_between(text, kShortestHeartbeat, LeaseTimes{kLongestLease, {}}.longest_heartbeat(),
                       "time between heartbeats");
}

Result<void> check_lease(const LeaseTimes& times) {
  if (times.heartbeat() <= times.longest_heartbeat()) return {};
  return invalid_argument("with --lease=" + in_seconds(times.lease) +
                          " heartbeats must come every " + in_seconds(times.longest_heartbeat()) +
                          " s or more often, not every " + in_seconds(times.heartbeat()) + " s")
      .within("--heartbeat-interval");
}

}  // namespace ddprun
