// The flight record of one rank as plain values: what its page (base/worker_page.h) said of its calls
// when it was read, and the words for it. Any thread.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

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

// "all_reduce", and back; "call 77" for one of a newer worker library.
std::string name_of(FlightCall call);
FlightCall call_named(std::string_view name);
// "float32"; empty: kNone.
std::string name_of(FlightType type);
FlightType type_named(std::string_view name);
// "sum"; empty: kNone.
std::string name_of(FlightOp op);
FlightOp op_named(std::string_view name);

bool is_message(FlightCall call);
// It moves nothing.
bool is_barrier(FlightCall call);

// "broadcast of 4096 bytes of float32 from rank 2", "all_reduce of 8 bytes (sum of int64)".
std::string words_of(const FlightEntry& entry);

// "2.0 s", from one time of a page to another. A worker's memory may hold anything: it is never negative,
// and does not overflow.
std::string span_text(std::uint64_t from_ns, std::uint64_t to_ns);

}  // namespace ddprun
