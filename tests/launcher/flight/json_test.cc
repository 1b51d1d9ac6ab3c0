#include "launcher/flight/json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "tests/launcher/flight/core/frame.h"

namespace ddprun {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::SizeIs;
using testing_support::add_call;
using testing_support::add_waiting;
using testing_support::flight_of;
using testing_support::kSecond;
using testing_support::name_group;

RankFlight full_flight(int rank) {
  RankFlight flight = flight_of(rank);
  flight.step = -3;
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

TEST(FlightJson, WhatIsNoFileIsRefused) {
  for (const char* text : {"", "[", "{}", "[7]", "[{}]", "[{\"rank\": 0}]",
                           "[{\"rank\": 0, \"boot_ns\": 1, \"wall_ns\": 1, \"calls\": [{}]}]"}) {
    const auto read = parse_flight_file(text);
    ASSERT_FALSE(read) << text;
    EXPECT_THAT(read.error().message(), HasSubstr("not a flight.json"));
  }
}

TEST(FlightJson, WhatIsNoTextIsWrittenAsSomething) {
  RankFlight flight = full_flight(0);
  flight.groups[0].name = "\xff\xfe";
  EXPECT_TRUE(parse_flight_file(flight_file({flight})));
}

TEST(FlightJson, ATraceHasAProcessForEachRankAndARowForEachGroup) {
  RankFlight first = flight_of(0);
  add_call(first, 1);
  add_call(first, 1, 7);
  add_waiting(first, 2);
  name_group(first, 7, "tp0", {0});
  RankFlight second = flight_of(1);
  second.boot_ns = 5 * kSecond;  // from a host that was booted later
  add_call(second, 1).begun_ns = 4 * kSecond;
  second.calls[0].ended_ns = 5 * kSecond;
  const json trace = json::parse(chrome_trace({first, second}));
  std::vector<json> calls;
  std::vector<std::string> rows;
  for (const json& event : trace.at("traceEvents")) {
    if (event["ph"] != "M") calls.push_back(event);
    if (event["name"] == "thread_name") rows.push_back(event["args"]["name"]);
  }
  EXPECT_THAT(rows, ElementsAre("world", "tp0", "world"));
  ASSERT_EQ(calls.size(), 4u);
  EXPECT_EQ(calls[0]["ph"], "X");
  EXPECT_EQ(calls[0]["pid"], 0);
  EXPECT_EQ(calls[0]["name"], "all_reduce");
  EXPECT_EQ(calls[0]["args"]["bytes"], 4096);
  EXPECT_DOUBLE_EQ(calls[0]["dur"], 1e6);
  // The call began 990 s before its page was read, at 2'000'000 s.
  EXPECT_DOUBLE_EQ(calls[0]["ts"], (2e6 - 990) * 1e6);
  EXPECT_NE(calls[1]["tid"], calls[0]["tid"]);
  EXPECT_EQ(calls[2]["ph"], "B");
  EXPECT_FALSE(calls[2].contains("dur"));
  EXPECT_EQ(calls[2]["tid"], calls[0]["tid"]);
  EXPECT_EQ(calls[3]["pid"], 1);
  EXPECT_DOUBLE_EQ(calls[3]["ts"], (2e6 - 1) * 1e6) << "by its own clock";
}

TEST(FlightJson, CallsThatOverlapHaveRowsOfTheirOwn) {
  RankFlight flight = flight_of(0);
  add_call(flight, 1).ended_ns = 25 * kSecond;  // the second call begins at 20 s, the third at 30 s
  add_call(flight, 2);
  add_call(flight, 3);
  std::vector<int> rows;
  const json trace = json::parse(chrome_trace({flight}));
  for (const json& event : trace.at("traceEvents")) {
    if (event["ph"] == "X") rows.push_back(event["tid"]);
  }
  EXPECT_THAT(rows, ElementsAre(0, 1, 0));
}

}  // namespace
}  // namespace ddprun
