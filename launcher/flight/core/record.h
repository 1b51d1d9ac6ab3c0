// The flight record of one rank, as plain values. It holds what the rank's page
// (base/worker_page.h) said about its calls when it was read. base/flight_words.h has the names
// for the values. Any thread.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
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

// When a step was reported.
struct FlightStep {
  std::int64_t step = 0;
  std::uint64_t ns = 0;

  friend bool operator==(const FlightStep&, const FlightStep&) = default;
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
  std::optional<std::int64_t> generation = {};  // if an agent has started the rank
  // When it was read, on both clocks of its host; zero: there was no page.
  std::uint64_t boot_ns = 0;
  std::int64_t wall_ns = 0;
  std::uint64_t call_count = 0;                  // since the worker began
  std::vector<FlightEntry> calls;                // the newest, in the order in which they began
  std::vector<FlightStep> steps;                 // the newest reports, in their order
  std::vector<CheckpointSpan> checkpoints;       // the newest waits, in the order of their ends
  std::vector<FlightGroupFacts> groups;          // groups that it has named
  std::map<std::uint32_t, std::string> origins;  // by FlightEntry::origin, for `calls`

  // Return what is known of a group, and where a call was made. Null: nothing is known.
  const FlightGroupFacts* group(std::uint64_t id) const;
  const std::string* origin_of(const FlightEntry& call) const;

  friend bool operator==(const RankFlight&, const RankFlight&) = default;
};

// Copies the newest calls of the page, at most `most`, their groups and origins, the steps and
// the waits for checkpoints. The worker's memory may hold anything, so reading is bounded in time
// and in range.
void read_flight(const WorkerPage& page, std::size_t most, RankFlight& flight);

}  // namespace ddprun
