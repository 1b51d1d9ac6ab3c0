#include "rendezvous/core/lease.h"

#include "base/seconds.h"

namespace ddprun {

Result<Duration> parse_lease(std::string_view text) {
  Result<Duration> lease = parse_seconds(text);
  if (lease && (*lease < kShortestLease || *lease > kLongestLease)) {
    return invalid_argument("'" + std::string(text) + "' is no lease: give seconds, from " +
                            to_text(kShortestLease) + " to " + to_text(kLongestLease));
  }
  return lease;
}

}  // namespace ddprun
