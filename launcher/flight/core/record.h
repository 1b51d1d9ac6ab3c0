// The flight record of one rank as plain values: what its page (base/worker_page.h) said of its calls
// when it was read. The words for it: base/flight_words.h. Any thread.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/flight_words.h"
#include "base/ids.h"
#include "base/worker_page.h"

namespace ddprun {

struct FlightGroupFacts {
  std::uint64_t id = 0;
  std::string name;
  std::uint32_t size = 0;
  std::uint64_t digest = 0;
  std::vector<int> ranks;  // the first kFlightGroupRanks

  friend bool operator==(const FlightGroupFacts&, const FlightGroupFacts&) = default;
};

struct RankFlight {
  Rank rank{0};
  LocalRank local_rank{0};
  std::string host;
  int pid = 0;
  bool lives = false;
  bool is_stopped = false;  // its process, by a signal or a debugger
  std::string state;        // "running", or how it ended
  std::optional<std::int64_t> step = {};
  // When it was read, on both clocks of its host; zero: no page was there.
  std::uint64_t boot_ns = 0;
  std::int64_t wall_ns = 0;
  std::uint64_t call_count = 0;                  // of its whole life
  std::vector<FlightEntry> calls;                // the newest, in their order
  std::vector<FlightGroupFacts> groups;          // that it has named
  std::map<std::uint32_t, std::string> origins;  // by FlightEntry::origin, of `calls`

  friend bool operator==(const RankFlight&, const RankFlight&) = default;
};

// Takes over the newest calls of the page, `most` at most, with what belongs to them. The worker's
// memory may hold anything: it is read in bounded time and within bounds.
void read_flight(const WorkerPage& page, std::size_t most, RankFlight& flight);

}  // namespace ddprun
