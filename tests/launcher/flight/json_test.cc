#include "launcher/flight/json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "base/concat.h"
#include "tests/launcher/flight/core/frame.h"

namespace ddprun {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::SizeIs;
using testing_support::add_call;
using testing_support::add_waiting;
using testing_support::flight_of;
using testing_support::name_group;

RankFlight full_flight(int rank) {
  RankFlight flight = flight_of(rank);
  flight.step = -3;
  flight.generation = 2;
  flight.steps = {{-4, 10}, {-3, 20}};
  flight.checkpoints = {{12, 14}, {0, std::numeric_limits<std::uint64_t>::max()}};
  flight.is_stopped = true;
  name_group(flight, std::numeric_limits<std::uint64_t>::max(), "tp0", {0, 2});
  for (std::uint64_t i = 1; i <= 300; ++i) add_call(flight, i);
  FlightEntry& call = add_waiting(flight, 1, std::numeric_limits<std::uint64_t>::max());
  call.call = FlightCall::kSend;
  call.peer = 2;
  call.tag = -1;
  call.origin = 4;
  call.failed = true;
  flight.origins[4] = "main";
  return flight;
}

TEST(FlightJson, LinesArePutTogetherToWhatTheyWere) {
  const std::vector<RankFlight> flights{full_flight(2), full_flight(0), flight_of(1)};
  std::vector<RankFlight> joined;
  // The lines of rank 2 come first, as if from another node.
  EXPECT_THAT(flight_lines(flights[0]), SizeIs(3));
  for (const RankFlight& flight : flights) {
    for (const auto& line : flight_lines(flight)) EXPECT_TRUE(take_flight_line(line, joined));
  }
  EXPECT_EQ(joined, flights);
}

TEST(FlightJson, LinesOfOtherVersionsArePassedOver) {
  std::vector<RankFlight> flights;
  for (const char* line :
       {"", "7", "{}", "{\"flight\": 1}", "{\"flight\": {}}", "{\"flight\": {\"rank\": \"x\"}}",
        "{\"flight\": {\"rank\": 0}}", "{\"flight\": {\"rank\": 9, \"goes_on\": true}}"}) {
    EXPECT_FALSE(take_flight_line(line, flights)) << line;
  }
  EXPECT_THAT(flights, SizeIs(0));
}

TEST(FlightJson, AFileHasALineForEachRankAndIsReadAsItWasWritten) {
  const std::vector<RankFlight> flights{full_flight(0), flight_of(1)};
  const std::string text = flight_file(flights);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 4);
  const auto read = parse_flight_file(text);
  ASSERT_TRUE(read) << read.error().message();
  EXPECT_EQ(*read, flights);
}

TEST(FlightJson, ARecordOfAnEarlierVersionHasNoCheckpoints) {
  EXPECT_FALSE(flight_json(flight_of(0)).contains("checkpoints"));
  const auto read = parse_flight_file(R"([{"rank": 0, "boot_ns": 1, "wall_ns": 1, "calls": []}])");
  ASSERT_TRUE(read) << read.error().message();
  EXPECT_THAT(read->at(0).checkpoints, SizeIs(0));
}

TEST(FlightJson, WhatIsNoFileIsRefused) {
  for (const char* text : {"", "[", "{}", "[7]", "[{}]", "[{\"rank\": 0}]",
                           "[{\"rank\": 0, \"boot_ns\": 1, \"wall_ns\": 1, \"calls\": [{}]}]"}) {
    const auto read = parse_flight_file(text);
    ASSERT_FALSE(read) << text;
    EXPECT_THAT(read.error().message(), HasSubstr("not a flight.json"));
  }
}

TEST(FlightJson, WaitsForCheckpointsThatAreNotPairsOfTimesAreRefused) {
  for (const char* checkpoints : {"7", "[7]", "[[]]", "[[1]]", "[[1, \"x\"]]", "{\"a\": 1}"}) {
    const auto read = parse_flight_file(
        concat(R"([{"rank": 0, "boot_ns": 1, "wall_ns": 1, "calls": [], "checkpoints": )",
               checkpoints, "}]"));
    ASSERT_FALSE(read) << checkpoints;
    EXPECT_THAT(read.error().message(), HasSubstr("not a flight.json"));
  }
}

TEST(FlightJson, WhatIsNoTextIsWrittenAsSomething) {
  RankFlight flight = full_flight(0);
  flight.groups[0].name = "\xff\xfe";
  EXPECT_TRUE(parse_flight_file(flight_file({flight})));
}

}  // namespace
}  // namespace ddprun
