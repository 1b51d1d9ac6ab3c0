// Builds flight records for tests.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "launcher/flight/core/record.h"

namespace ddprun::testing_support {

inline constexpr std::uint64_t kSecond = 1'000'000'000;
inline constexpr std::uint64_t kNow = 1000 * kSecond;

// Returns the record of a rank that lives and has made no call.
inline RankFlight flight_of(int rank) {
  return {.rank = Rank(rank),
          .local_rank = LocalRank(rank),
          .host = "h",
          .pid = 100 + rank % 1000,
          .lives = true,
          .state = "running",
          .boot_ns = kNow,
          .wall_ns = 2'000'000 * static_cast<std::int64_t>(kSecond)};
}

// Adds the next call of the rank: an all_reduce of 4096 bytes that took one second.
inline FlightEntry& add_call(RankFlight& flight, std::uint64_t collective,
                             std::uint64_t group = 0) {
  const std::uint64_t number = ++flight.call_count;
  flight.calls.push_back({.number = number,
                          .begun_ns = 10 * number * kSecond,
                          .ended_ns = (10 * number + 1) * kSecond,
                          .collective = collective,
                          .bytes = 4096,
                          .group = group,
                          .call = FlightCall::kAllReduce,
                          .dtype = FlightType::kFloat32,
                          .op = FlightOp::kSum});
  return flight.calls.back();
}

// As add_call(), for a call that has been in progress for five seconds.
inline FlightEntry& add_waiting(RankFlight& flight, std::uint64_t collective,
                                std::uint64_t group = 0) {
  FlightEntry& call = add_call(flight, collective, group);
  call.begun_ns = kNow - 5 * kSecond;
  call.ended_ns = 0;
  return call;
}

inline void name_group(RankFlight& flight, std::uint64_t id, const std::string& name,
                       const std::vector<int>& ranks) {
  flight.groups.push_back({.id = id,
                           .name = name,
                           .size = static_cast<std::uint32_t>(ranks.size()),
                           .digest = flight_digest(ranks),
                           .ranks = ranks});
}

}  // namespace ddprun::testing_support
