#include "launcher/flight/core/text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/launcher/flight/core/frame.h"

namespace ddprun {
namespace {

using testing::HasSubstr;
using testing::Not;
using testing_support::add_call;
using testing_support::add_waiting;
using testing_support::flight_of;
using testing_support::name_group;

TEST(FlightText, ATableHasTheNewestCallsAndNoEmptyColumns) {
  RankFlight flight = flight_of(0);
  flight.step = 7;
  name_group(flight, 5, "tp0", {0, 1});
  add_call(flight, 1);
  FlightEntry& odd = add_call(flight, 1, 5);
  odd.bytes = 3 * 1024 * 1024;
  odd.failed = true;
  add_waiting(flight, 2);
  EXPECT_EQ(flight_table({flight}, flight, 2),
            "rank 0 (local rank 0 on h, pid 100): running, step 7; 3 calls, the last 2:\n"
            "  number  group  collective  call        size     dtype    op   begun         state\n"
            "  2       tp0    1           all_reduce  3.0 MiB  float32  sum  16.3 min ago  failed "
            "after 1.0 s\n"
            "  3       world  2           all_reduce  4.0 KiB  float32  sum  5.0 s ago     in "
            "progress\n");
  EXPECT_THAT(flight_table({flight}, flight, 0), Not(HasSubstr("number")));
  EXPECT_EQ(flight_table({flight}, flight_of(1), 9),
            "rank 1 (local rank 1 on h, pid 101): running; no call was recorded\n");
}

TEST(FlightText, WhereACallCameFromAndWithWhomIsShown) {
  RankFlight flight = flight_of(0);
  FlightEntry& call = add_call(flight, 0);
  call.call = FlightCall::kSend;
  call.peer = 3;
  call.origin = 1;
  flight.origins[1] = "save(\n) < main";
  const std::string table = flight_table({flight}, flight, 9);
  EXPECT_THAT(table, HasSubstr("rank"));
  EXPECT_THAT(table, HasSubstr("took 1.0 s, from save(?) < main")) << "on one line";
  EXPECT_THAT(table, Not(HasSubstr("collective")));
}

TEST(FlightText, FindingsAreLinesAndNothingIsSaidToBeNothing) {
  RankFlight first = flight_of(0);
  RankFlight second = flight_of(1);
  EXPECT_THAT(findings_text({first, second}),
              testing::AllOf(HasSubstr("no calls were recorded"), HasSubstr("py-spy dump --pid")));
  add_call(first, 1);
  add_call(second, 1);
  EXPECT_EQ(findings_text({first, second}), "no calls differ, and none is in progress\n");
  add_waiting(first, 2);
  EXPECT_THAT(findings_text({first, second}),
              HasSubstr("behind: rank 1 has not come to all_reduce of 4096 bytes"));
}

}  // namespace
}  // namespace ddprun
