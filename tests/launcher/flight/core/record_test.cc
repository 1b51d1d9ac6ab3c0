#include "launcher/flight/core/record.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>

namespace ddprun {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

// Writes call `number` into the page, as a call in progress.
void put_call(WorkerPage& page, std::uint64_t number) {
  FlightRecord& record = page.record_of(number);
  record.begun_ns = number;
  record.call = FlightCall::kBroadcast;
  record.dtype = FlightType::kBfloat16;
  record.op = FlightOp::kMax;
  record.tag = 5;
  record.number = number;
  page.calls = number;
}

TEST(FlightRecord, OfAPageTheNewestCallsAreRead) {
  const auto page = std::make_unique<WorkerPage>();
  for (std::uint64_t number = 1; number <= kFlightRecords + 10; ++number) put_call(*page, number);
  RankFlight flight;
  read_flight(*page, 3, flight);
  EXPECT_EQ(flight.call_count, kFlightRecords + 10);
  ASSERT_EQ(flight.calls.size(), 3u);
  EXPECT_EQ(flight.calls.front().number, kFlightRecords + 8);
  EXPECT_EQ(flight.calls.back().number, kFlightRecords + 10);
  EXPECT_EQ(flight.calls.back().dtype, FlightType::kBfloat16);
  EXPECT_EQ(flight.calls.back().op, FlightOp::kMax);
  EXPECT_EQ(flight.calls.back().tag, 5);
  EXPECT_FALSE(flight.step);
  RankFlight all;
  read_flight(*page, 1'000'000, all);
  EXPECT_EQ(all.calls.size(), kFlightRecords);
  EXPECT_EQ(all.calls.front().number, 11u);
}

TEST(FlightRecord, TheNewestStepsOfAPageAreRead) {
  const auto page = std::make_unique<WorkerPage>();
  for (std::uint64_t number = 1; number <= kStepMarks + 3; ++number) {
    StepMark& mark = page->mark_of(number);
    mark.step = static_cast<std::int64_t>(number) - 10;
    mark.ns = 5 * number;
    mark.number = number;
    page->reports = number;
  }
  page->mark_of(kStepMarks).number = 0;  // it is being written
  RankFlight flight;
  read_flight(*page, 10, flight);
  ASSERT_EQ(flight.steps.size(), kStepMarks - 1);
  EXPECT_EQ(flight.steps.front(), (FlightStep{.step = -6, .ns = 20}));
  EXPECT_EQ(flight.steps.back().ns, 5 * (kStepMarks + 3));
}

TEST(FlightRecord, TheNewestWaitsForCheckpointsOfAPageAreRead) {
  const auto page = std::make_unique<WorkerPage>();
  for (std::uint64_t number = 1; number <= kCheckpointMarks + 3; ++number) {
    CheckpointMark& mark = page->checkpoint_of(number);
    mark.begun_ns = 5 * number;
    mark.ended_ns = 5 * number + 1;
    mark.number = number;
    page->checkpoints = number;
  }
  page->checkpoint_of(kCheckpointMarks).number = 0;  // it is being written
  RankFlight flight;
  read_flight(*page, 10, flight);
  ASSERT_EQ(flight.checkpoints.size(), kCheckpointMarks - 1);
  EXPECT_EQ(flight.checkpoints.front(), (CheckpointSpan{.begun_ns = 20, .ended_ns = 21}));
  EXPECT_EQ(flight.checkpoints.back().begun_ns, 5 * (kCheckpointMarks + 3));
}

TEST(FlightRecord, GroupsAndPlacesOfAPageAreRead) {
  const auto page = std::make_unique<WorkerPage>();
  page->groups[0] = {.id = 7, .size = 200, .listed = 2};
  std::memcpy(page->groups[0].name.data(), "tp\n", 3);
  page->groups[0].ranks = {4, 9};
  page->group_count = 1;
  std::memcpy(page->origins[1].data(), "main", 4);
  page->origin_count = 2;
  put_call(*page, 1);
  page->records[0].origin = 2;
  page->reports = 1;
  page->step = 8;
  RankFlight flight;
  read_flight(*page, 10, flight);
  ASSERT_EQ(flight.groups.size(), 1u);
  EXPECT_EQ(flight.groups[0].name, "tp?") << "on one line";
  EXPECT_EQ(flight.groups[0].size, 200u);
  EXPECT_THAT(flight.groups[0].ranks, ElementsAre(4, 9));
  EXPECT_THAT(flight.origins, ElementsAre(testing::Pair(2u, "main"))) << "those that are named";
  EXPECT_EQ(flight.step, 8);
}

TEST(FlightRecord, NonsenseIsReadWithinBounds) {
  const auto page = std::make_unique<WorkerPage>();
  std::memset(static_cast<void*>(page.get()), 0xff, sizeof(WorkerPage));
  RankFlight flight;
  read_flight(*page, kFlightRecords, flight);
  EXPECT_THAT(flight.calls.size(), testing::Le(kFlightRecords));
  EXPECT_THAT(flight.checkpoints.size(), testing::Le(kCheckpointMarks));
  EXPECT_EQ(flight.groups.size(), kFlightGroups);
  EXPECT_EQ(flight.groups[0].name.size(), kFlightGroupNameBytes);
  EXPECT_EQ(flight.groups[0].ranks.size(), kFlightGroupRanks);
  page->calls = 1;
  page->records[0].number = 1;
  page->records[0].origin = kFlightOrigins + 1;
  RankFlight other;
  read_flight(*page, kFlightRecords, other);
  EXPECT_THAT(other.calls, testing::SizeIs(1));
  EXPECT_THAT(other.origins, IsEmpty());
}

}  // namespace
}  // namespace ddprun
