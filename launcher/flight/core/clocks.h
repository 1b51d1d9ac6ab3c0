// Aligns the clocks of hosts by the collectives that their ranks shared.
//
// A collective such as all_reduce ends on no rank before it has begun on every rank. So if rank a
// of the reference host and rank b of another host were in it, and o is added to b's times:
//
//   begin(a) <= end(b) + o     and     begin(b) + o <= end(a)
//
// All shared collectives together give an interval for o. Within it, the offset is the median of
// end(a) - end(b): such a collective ends almost at the same moment on all ranks. The bound is the
// distance to the farther limit of the interval. The rate of the clocks is taken as equal; if it is
// not, the interval may be empty, and the bound is its excess.
//
// The reference is the wall clock of the host of the lowest rank. A host that shared no such
// collective with it keeps its own wall clock. Pure; any thread.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "launcher/flight/core/record.h"

namespace ddprun {

struct HostClock {
  // Nanoseconds since 1970 of the reference at time 0 of the host's BootClock.
  std::int64_t boot_wall_ns = 0;
  // How far a time may be from the reference; nullopt: unknown, by the host's own wall clock.
  std::optional<std::int64_t> bound_ns = 0;
  std::size_t collectives = 0;  // that were used

  // Returns nanoseconds since 1970, by the clock of the reference.
  std::int64_t wall_ns(std::uint64_t boot_ns) const;
};

// Returns the clock of each host.
std::map<std::string, HostClock> align_clocks(const std::vector<RankFlight>& flights);

}  // namespace ddprun
