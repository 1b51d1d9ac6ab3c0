#include "launcher/flight/core/clocks.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/rng.h"
#include "tests/launcher/flight/core/frame.h"

namespace ddprun {
namespace {

using testing_support::add_call;
using testing_support::flight_of;
using testing_support::kNow;

constexpr std::int64_t kMillisecond = 1'000'000;

// Returns the record of rank 1 on another host. Its wall clock is ahead by `ahead_ns`, and it was
// booted `late_ns` later.
RankFlight on_another_host(const RankFlight& rank_0, std::int64_t ahead_ns, std::uint64_t late_ns) {
  RankFlight flight = rank_0;
  flight.rank = Rank(1);
  flight.host = "other";
  flight.boot_ns -= late_ns;
  flight.wall_ns += ahead_ns;
  for (FlightEntry& call : flight.calls) {
    call.begun_ns -= late_ns;
    call.ended_ns -= late_ns;
  }
  return flight;
}

// Returns a record with ten collectives of 2 ms.
RankFlight with_calls() {
  RankFlight flight = flight_of(0);
  for (std::uint64_t i = 1; i <= 10; ++i) {
    FlightEntry& call = add_call(flight, i);
    call.ended_ns = call.begun_ns + 2 * kMillisecond;
  }
  return flight;
}

TEST(Clocks, OfOneHostItsWallClockCounts) {
  const auto clocks = align_clocks({with_calls()});
  ASSERT_EQ(clocks.size(), 1U);
  const HostClock& clock = clocks.at("h");
  EXPECT_EQ(clock.wall_ns(kNow), flight_of(0).wall_ns);
  EXPECT_EQ(clock.bound_ns, 0);
  EXPECT_TRUE(align_clocks({}).empty());
}

TEST(Clocks, SharedCollectivesAlignAClockThatIsFarOff) {
  const RankFlight first = with_calls();
  const RankFlight second = on_another_host(first, 3'600'000 * kMillisecond, 5'000'000'000);
  const auto clocks = align_clocks({second, first});
  const HostClock& clock = clocks.at("other");
  EXPECT_EQ(clock.collectives, 10U);
  EXPECT_EQ(clock.wall_ns(second.boot_ns), first.wall_ns);
  EXPECT_EQ(clock.bound_ns, 2 * kMillisecond) << "a collective is no longer";
}

TEST(Clocks, TheBoundHoldsWhereRanksBeginAndEndAtDifferentTimes) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    Rng rng(seed);
    RankFlight first = with_calls();
    RankFlight second = on_another_host(first, 123'456'789, 987'654'321);
    for (std::size_t i = 0; i < first.calls.size(); ++i) {
      // Each begins within 2 ms, and ends up to 1 ms after the later begin.
      const std::uint64_t late[] = {rng.next() % 2'000'000, rng.next() % 2'000'000};
      const std::uint64_t all_there = std::max(late[0], late[1]);
      const std::uint64_t ends[] = {all_there + rng.next() % 1'000'000,
                                    all_there + rng.next() % 1'000'000};
      std::size_t rank = 0;
      for (RankFlight* flight : {&first, &second}) {
        FlightEntry& call = flight->calls[i];
        call.ended_ns = call.begun_ns + ends[rank];
        call.begun_ns += late[rank++];
      }
    }
    const HostClock clock = align_clocks({first, second}).at("other");
    const std::int64_t error = clock.wall_ns(second.boot_ns) - first.wall_ns;
    ASSERT_TRUE(clock.bound_ns) << seed;
    EXPECT_LE(std::abs(error), *clock.bound_ns) << seed;
    EXPECT_LE(*clock.bound_ns, 3 * kMillisecond) << seed;
  }
}

TEST(Clocks, WithoutASharedCollectiveAHostKeepsItsOwnClock) {
  const RankFlight first = with_calls();
  for (const auto& change : {+[](RankFlight& flight) { flight.generation = 1; },
                             +[](RankFlight& flight) { flight.calls.clear(); },
                             +[](RankFlight& flight) {
                               for (FlightEntry& call : flight.calls) call.failed = true;
                             },
                             +[](RankFlight& flight) {
                               for (FlightEntry& call : flight.calls)
                                 call.call = FlightCall::kBroadcast;  // the root does not wait
                             },
                             +[](RankFlight& flight) { flight.wall_ns = INT64_MAX; }}) {
    RankFlight second = on_another_host(first, 5, 0);
    change(second);
    const HostClock clock = align_clocks({first, second}).at("other");
    EXPECT_FALSE(clock.bound_ns);
    EXPECT_EQ(clock.wall_ns(second.boot_ns), second.wall_ns);
  }
}

}  // namespace
}  // namespace ddprun
