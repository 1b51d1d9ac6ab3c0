#include "launcher/flight/trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <climits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/launcher/flight/core/frame.h"
#include "tests/support/read_file.h"
#include "tests/support/temporary_directory.h"

namespace ddprun {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing_support::add_call;
using testing_support::add_waiting;
using testing_support::flight_of;
using testing_support::kNow;
using testing_support::kSecond;
using testing_support::name_group;

// Returns the events that are no metadata.
std::vector<json> events_of(const std::string& trace) {
  std::vector<json> events;
  const json parsed = json::parse(trace);
  for (const json& event : parsed.at("traceEvents")) {
    if (event["ph"] != "M") events.push_back(event);
  }
  return events;
}

// tests/integration/launcher/trace_test.py checks the format, and traces of several hosts.
TEST(Trace, HasAProcessForEachRankAndARowForEachGroup) {
  RankFlight first = flight_of(0);
  first.generation = 3;
  add_call(first, 1);
  add_call(first, 1, 7);
  add_waiting(first, 2);
  name_group(first, 7, "tp0", {0});
  RankFlight second = flight_of(1);
  add_call(second, 1);
  second.steps = {{7, kNow - 3 * kSecond}, {8, kNow - 2 * kSecond}};
  second.lives = false;
  second.state = "exit code 1";
  const std::string text = chrome_trace({second, first});
  std::vector<std::string> rows;
  const json trace = json::parse(text);
  for (const json& event : trace.at("traceEvents")) {
    if (event["name"] == "thread_name") rows.push_back(event["args"]["name"]);
  }
  EXPECT_THAT(rows, ElementsAre("generation", "steps", "world", "generation", "world", "tp0"));
  const std::vector<json> events = events_of(text);
  std::vector<std::string> names;
  for (const json& event : events) names.push_back(event["name"]);
  EXPECT_THAT(names, ElementsAre("generation 3", "all_reduce", "all_reduce", "all_reduce", "calls",
                                 "exit code 1", "step 8", "all_reduce"));
  EXPECT_EQ(events[1]["ph"], "X");
  EXPECT_EQ(events[1]["pid"], 0);
  EXPECT_EQ(events[1]["args"]["bytes"], 4096);
  EXPECT_EQ(events[1]["ts"], 0) << "the first event";
  EXPECT_EQ(events[1]["dur"], 1e6);
  EXPECT_EQ(events[2]["args"]["in_progress"], true);
  EXPECT_EQ(events[2]["dur"], 5e6) << "until it was read";
  EXPECT_EQ(events[3]["args"]["group"], 7);
  EXPECT_NE(events[3]["tid"], events[1]["tid"]);
  EXPECT_EQ(events[5]["ph"], "i");
  EXPECT_EQ(events[6]["dur"], 1e6);
  EXPECT_EQ(trace["otherData"]["start_unix_ns"], (2'000'000 - 990) * std::int64_t{kSecond});
  EXPECT_EQ(trace["otherData"]["clocks"]["h"]["bound_us"], 0);
}

TEST(Trace, CallsThatOverlapHaveRowsOfTheirOwn) {
  RankFlight flight = flight_of(0);
  add_call(flight, 1).ended_ns = 25 * kSecond;  // the second call begins at 20 s, the third at 30 s
  add_call(flight, 2);
  add_call(flight, 3);
  std::vector<int> rows;
  for (const json& event : events_of(chrome_trace({flight}))) {
    if (event["name"] == "all_reduce") rows.push_back(event["tid"].get<int>() % 1000);
  }
  EXPECT_THAT(rows, ElementsAre(0, 0, 1));
}

TEST(Trace, WaitsForCheckpointsAreARowAndMoreWhereTheyOverlap) {
  RankFlight flight = flight_of(0);
  const std::uint64_t begun = kNow - 10 * kSecond;
  flight.checkpoints = {{begun, begun + kSecond},
                        {begun + 3 * kSecond, begun + 4 * kSecond},
                        {begun + 2 * kSecond, begun + 5 * kSecond},
                        {begun + 6 * kSecond, begun + 5 * kSecond},  // takes no time
                        // Times that cannot be right.
                        {0, begun},
                        {begun, kNow + 1},
                        {UINT64_MAX, UINT64_MAX}};
  const std::string text = chrome_trace({flight, flight_of(1)});
  std::vector<std::string> rows;
  const json trace = json::parse(text);
  for (const json& event : trace.at("traceEvents")) {
    if (event["name"] == "thread_name") rows.push_back(event["args"]["name"]);
  }
  EXPECT_THAT(rows, ElementsAre("generation", "checkpoints", "checkpoints (2)", "generation"));
  std::vector<std::vector<std::int64_t>> waits;  // row, begin and duration in seconds
  for (const json& event : events_of(text)) {
    if (event["name"] != "checkpoint") continue;
    EXPECT_EQ(event["ph"], "X");
    EXPECT_EQ(event["pid"], 0);
    waits.push_back({event["tid"].get<int>(), event["ts"].get<std::int64_t>() / 1'000'000,
                     event["dur"].get<std::int64_t>() / 1'000'000});
  }
  EXPECT_THAT(waits, ElementsAre(ElementsAre(2, 0, 1), ElementsAre(2, 3, 1), ElementsAre(2, 6, 0),
                                 ElementsAre(3, 2, 3)));
}

TEST(Trace, TheEventsOfAJobAreAProcessOfTheirOwn) {
  const json job{{"events", json::array({{{"time", "2026-11-28T11:28:32.250Z"}, {"what", "up"}},
                                         {{"time", "soon"}, {"what", "never"}}})},
                 {"failures", json::array({{{"time", "1970-01-01T00:00:01Z"}, {"what", "down"}}})}};
  const std::vector<TraceMark> marks = marks_of(job);
  ASSERT_EQ(marks.size(), 2U);
  EXPECT_EQ(marks[0].wall_ns, 1'795'865'312'250'000'000);
  EXPECT_EQ(marks[1].wall_ns, std::int64_t{kSecond});
  EXPECT_TRUE(marks_of(json::object()).empty());
  for (const int rank : {7, INT_MAX}) {
    const std::vector<json> events = events_of(chrome_trace({flight_of(rank)}, marks));
    ASSERT_EQ(events.size(), 3U);
    EXPECT_EQ(events.back()["name"], "up");
  }
}

TEST(Trace, AFileIsCompressedIfItsNameEndsWithGz) {
  const testing_support::TemporaryDirectory directory;
  ASSERT_TRUE(write_trace(directory / "plain.json", "{}\n"));
  EXPECT_EQ(testing_support::read_file(directory / "plain.json"), "{}\n");
  ASSERT_TRUE(write_trace(directory / "small.json.gz", "{}\n"));
  EXPECT_EQ(testing_support::read_file(directory / "small.json.gz").substr(0, 2), "\x1f\x8b");
  for (const char* path : {"/nowhere/trace.json", "/nowhere/trace.json.gz"}) {
    const Result<void> written = write_trace(path, "{}");
    ASSERT_FALSE(written);
    EXPECT_EQ(written.error().message(),
              "write " + std::string(path) + ": No such file or directory");
  }
}

}  // namespace
}  // namespace ddprun
