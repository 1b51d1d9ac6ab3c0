#include "launcher/flight/core/compare.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/rng.h"
#include "tests/launcher/flight/core/frame.h"
#include "tests/support/test_seed.h"

namespace ddprun {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing_support::add_call;
using testing_support::add_waiting;
using testing_support::flight_of;
using testing_support::kNow;
using testing_support::kSecond;
using testing_support::name_group;
using Kind = FlightFinding::Kind;

// Returns ranks that have all made `calls` collectives of the world.
std::vector<RankFlight> world_of(int ranks, int calls) {
  std::vector<RankFlight> flights;
  for (int rank = 0; rank < ranks; ++rank) {
    flights.push_back(flight_of(rank));
    for (int i = 1; i <= calls; ++i) add_call(flights.back(), static_cast<std::uint64_t>(i));
  }
  return flights;
}

std::vector<Kind> kinds_of(const std::vector<FlightFinding>& findings) {
  std::vector<Kind> kinds;
  for (const FlightFinding& finding : findings) kinds.push_back(finding.kind);
  return kinds;
}

TEST(FlightCompare, OfRanksThatDidTheSameThereIsNothingToSay) {
  EXPECT_THAT(compare_flights(world_of(3, 5)), IsEmpty());
  EXPECT_THAT(compare_flights({}), IsEmpty());
  EXPECT_THAT(compare_flights({flight_of(0), flight_of(1)}), IsEmpty());
}

TEST(FlightCompare, WhoHasNotComeIsNamedWithWhatItDoesInstead) {
  std::vector<RankFlight> flights = world_of(3, 2);
  add_waiting(flights[0], 3);
  add_waiting(flights[2], 3);
  const auto findings = compare_flights(flights);
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0].kind, Kind::kBehind);
  EXPECT_EQ(findings[0].collective, 3u);
  EXPECT_THAT(findings[0].ranks, ElementsAre(1));
  EXPECT_EQ(
      findings[0].text,
      "rank 1 has not come to all_reduce of 4096 bytes (sum of float32) (collective 3 of the "
      "world), where ranks 0,2 have waited 5.0 s; rank 1: in no call; the last one, all_reduce "
      "of 4096 bytes (sum of float32) (collective 2 of the world), ended 16.3 min ago");
}

TEST(FlightCompare, OfManyWhoHaveNotComeTheFirstAreToldInFull) {
  std::vector<RankFlight> flights = world_of(40, 1);
  add_waiting(flights[0], 2);
  const auto findings = compare_flights(flights);
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0].ranks.size(), 39u);
  EXPECT_THAT(findings[0].text, HasSubstr("ranks 1-39 have not come to"));
  EXPECT_THAT(findings[0].text, HasSubstr("; rank 8: in no call"));
  EXPECT_THAT(findings[0].text, testing::EndsWith("ago; ..."));
}

TEST(FlightCompare, WhoIsInACollectiveOfAnotherGroupHasNotComeEither) {
  std::vector<RankFlight> flights = world_of(3, 2);
  for (RankFlight& one : flights) name_group(one, 7, "tp0", {0, 1});
  add_waiting(flights[0], 3);
  add_waiting(flights[1], 1, 7);
  add_waiting(flights[2], 3);
  const auto findings = compare_flights(flights);
  EXPECT_THAT(kinds_of(findings), ElementsAre(Kind::kBehind, Kind::kBehind));
  EXPECT_THAT(findings[0].ranks, ElementsAre(1));
  EXPECT_THAT(findings[0].text, HasSubstr("rank 1: in all_reduce of 4096 bytes (sum of float32) "
                                          "(collective 1 of group tp0 (ranks 0-1)) for 5.0 s"));
  EXPECT_THAT(findings[1].ranks, ElementsAre(0)) << "rank 2 is not of the group";
}

TEST(FlightCompare, ACallThatIsNotTheSameForAllIsAMismatch) {
  using Change = void (*)(FlightEntry&);
  const std::vector<std::pair<Change, std::string>> changes{
      {[](FlightEntry& call) { call.call = FlightCall::kAllGather; },
       "rank 1 called all_gather of"},
      {[](FlightEntry& call) { call.bytes = 8; }, "rank 1 called all_reduce of 8 bytes"},
      {[](FlightEntry& call) { call.dtype = FlightType::kFloat16; }, "(sum of float16)"},
      {[](FlightEntry& call) { call.op = FlightOp::kMax; }, "(max of float32)"},
      {[](FlightEntry& call) { call.peer = 2; }, "from rank 2"}};
  for (const auto& [change, words] : changes) {
    std::vector<RankFlight> flights = world_of(3, 4);
    change(flights[1].calls[2]);
    flights[1].calls[3].bytes = 1;  // comes from the first mismatch
    const auto findings = compare_flights(flights);
    ASSERT_THAT(kinds_of(findings), ElementsAre(Kind::kMismatch)) << words;
    EXPECT_EQ(findings[0].collective, 3u);
    EXPECT_THAT(findings[0].ranks, ElementsAre(1));
    EXPECT_THAT(findings[0].text, HasSubstr("collective 3 of the world differs between ranks: "
                                            "ranks 0,2 called all_reduce of 4096 bytes"));
    EXPECT_THAT(findings[0].text, HasSubstr(words));
  }
}

TEST(FlightCompare, WhereNoneHasMostAllAreOfTheMismatchAndItIsSaidFromWhereTheyCalled) {
  std::vector<RankFlight> flights = world_of(2, 1);
  flights[1].calls[0].call = FlightCall::kBarrier;
  flights[1].calls[0].origin = 1;
  flights[1].origins[1] = "save() < main";
  const auto findings = compare_flights(flights);
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_THAT(findings[0].ranks, ElementsAre(0, 1));
  EXPECT_THAT(findings[0].text, HasSubstr("rank 1 called barrier, from save() < main"));
}

TEST(FlightCompare, SharesOfAllToAllMayDiffer) {
  std::vector<RankFlight> flights = world_of(2, 1);
  for (RankFlight& one : flights) one.calls[0].call = FlightCall::kAllToAll;
  flights[1].calls[0].bytes = 1;
  EXPECT_THAT(compare_flights(flights), IsEmpty());
}

TEST(FlightCompare, MessagesAreNoCollectives) {
  std::vector<RankFlight> flights = world_of(2, 1);
  FlightEntry& send = add_waiting(flights[0], 1);
  send.call = FlightCall::kSend;
  send.peer = 1;
  EXPECT_THAT(compare_flights(flights), IsEmpty());
  EXPECT_THAT(doing_text(flights, flights[0]), HasSubstr("in send of 4096 bytes"));
}

TEST(FlightCompare, WhatAllAreInIsInProgress) {
  std::vector<RankFlight> flights = world_of(2, 1);
  add_waiting(flights[0], 2);
  add_waiting(flights[1], 2);
  auto findings = compare_flights(flights);
  ASSERT_THAT(kinds_of(findings), ElementsAre(Kind::kInProgress));
  EXPECT_THAT(findings[0].ranks, ElementsAre(0, 1));
  flights[1].calls.back().ended_ns = kNow - kSecond;
  findings = compare_flights(flights);
  EXPECT_THAT(findings[0].text, HasSubstr("the others have left it"));
}

TEST(FlightCompare, StoppedAndDeadRanksAreSeenWithTheirLastCall) {
  std::vector<RankFlight> flights = world_of(3, 1);
  add_waiting(flights[0], 2);
  flights[1].is_stopped = true;
  flights[2].lives = false;
  flights[2].state = "killed by SIGKILL";
  const auto findings = compare_flights(flights);
  ASSERT_THAT(kinds_of(findings), ElementsAre(Kind::kBehind, Kind::kStopped, Kind::kEnded));
  EXPECT_THAT(findings[0].ranks, ElementsAre(1, 2));
  EXPECT_THAT(findings[0].text, HasSubstr("rank 1: stopped, in no call"));
  EXPECT_THAT(findings[2].text, HasSubstr("rank 2: killed by SIGKILL, in no call"));
}

TEST(FlightCompare, ACallThatFailedWasWaitedInUnlessLaterOnesEndedWell) {
  std::vector<RankFlight> flights = world_of(2, 1);
  add_call(flights[0], 2).failed = true;
  auto findings = compare_flights(flights);
  ASSERT_THAT(kinds_of(findings), ElementsAre(Kind::kBehind));
  EXPECT_THAT(findings[0].text, HasSubstr("which failed for rank 0 after 1.0 s"));
  for (RankFlight& one : flights) add_call(one, 3);
  EXPECT_THAT(compare_flights(flights), IsEmpty());
}

TEST(FlightCompare, WhoseCallsOfAGroupWereOverwrittenIsNotBehind) {
  std::vector<RankFlight> flights = world_of(2, 0);
  add_waiting(flights[0], 9);
  flights[1].call_count = 5000;
  EXPECT_THAT(kinds_of(compare_flights(flights)), ElementsAre(Kind::kInProgress));
}

TEST(FlightCompare, RanksThatTakeAGroupForAnotherAreNamed) {
  std::vector<RankFlight> flights = world_of(2, 1);
  name_group(flights[0], 7, "tp0", {0, 1});
  name_group(flights[1], 7, "tp1", {1});
  const auto findings = compare_flights(flights);
  ASSERT_THAT(kinds_of(findings), ElementsAre(Kind::kMembers));
  EXPECT_EQ(findings[0].text,
            "rank 1 knows group 7 as 'tp1' of ranks 1, others as 'tp0' of ranks 0-1");
}

TEST(FlightCompare, GroupsAreNamedAsFarAsTheyAreKnown) {
  std::vector<RankFlight> flights = world_of(1, 0);
  name_group(flights[0], 7, "tp0", {0, 2});
  name_group(flights[0], 8, "all", {0, 1});
  flights[0].groups[1].size = 4000;
  EXPECT_EQ(group_text(flights, 0), "the world");
  EXPECT_EQ(group_text(flights, 7), "group tp0 (ranks 0,2)");
  EXPECT_EQ(group_text(flights, 8), "group all (4000 ranks)");
  EXPECT_EQ(group_text(flights, 9), "group 9");
}

// All ranks run one random program, in groups of all ranks or of half of them. It has one fault.
TEST(FlightCompare, FindsTheOneFaultOfRandomPrograms) {
  const std::uint64_t seed = testing_support::test_seed(1);
  SCOPED_TRACE(testing_support::seed_text(seed));
  Rng rng(seed);
  for (int round = 0; round < 300; ++round) {
    const int ranks = 2 + static_cast<int>(rng.below(6));
    std::vector<RankFlight> flights = world_of(ranks, 0);
    std::vector<int> low;
    for (int rank = 0; rank < (ranks + 1) / 2; ++rank) low.push_back(rank);
    for (RankFlight& one : flights) {
      if (one.rank.value < static_cast<int>(low.size())) name_group(one, 5, "low", low);
    }
    const auto length = 1 + rng.below(20);
    const auto faulty = static_cast<std::size_t>(rng.below(low.size()));
    enum class Fault { kNone, kOther, kAbsent } fault = static_cast<Fault>(rng.below(3));
    std::uint64_t world = 0;
    std::uint64_t of_low = 0;
    bool is_last_low = false;
    for (std::uint64_t i = 0; i < length; ++i) {
      const bool is_low = low.size() > 1 && rng.below(2) == 0;
      const std::uint64_t number = is_low ? ++of_low : ++world;
      const bool is_last = i + 1 == length;
      is_last_low = is_low;
      for (std::size_t rank = 0; rank < (is_low ? low.size() : flights.size()); ++rank) {
        if (is_last && fault == Fault::kAbsent && rank == faulty) continue;
        FlightEntry& call = is_last && fault == Fault::kAbsent
                                ? add_waiting(flights[rank], number, is_low ? 5 : 0)
                                : add_call(flights[rank], number, is_low ? 5 : 0);
        if (is_last && fault == Fault::kOther && rank == faulty) call.call = FlightCall::kReduce;
      }
    }
    const auto findings = compare_flights(flights);
    if (fault == Fault::kNone) {
      EXPECT_THAT(findings, IsEmpty());
      continue;
    }
    ASSERT_EQ(findings.size(), 1u);
    EXPECT_EQ(findings[0].kind, fault == Fault::kOther ? Kind::kMismatch : Kind::kBehind);
    EXPECT_EQ(findings[0].group, is_last_low ? 5u : 0u);
    EXPECT_EQ(findings[0].collective, is_last_low ? of_low : world);
    EXPECT_THAT(findings[0].ranks, testing::Contains(static_cast<int>(faulty)));
  }
}

// A program that writes out of bounds can leave such records.
TEST(FlightCompare, NonsenseIsComparedInBoundedTime) {
  const std::uint64_t seed = testing_support::test_seed(1);
  SCOPED_TRACE(testing_support::seed_text(seed));
  Rng rng(seed);
  for (int round = 0; round < 50; ++round) {
    std::vector<RankFlight> flights = world_of(3, 0);
    for (RankFlight& one : flights) {
      one.boot_ns = rng.next();
      for (int i = 0; i < 50; ++i) {
        one.calls.push_back({.number = rng.next(),
                             .begun_ns = rng.next(),
                             .ended_ns = rng.below(3) == 0 ? 0 : rng.next(),
                             .collective = rng.below(5) == 0 ? UINT64_MAX : rng.below(9),
                             .bytes = rng.next(),
                             .group = rng.below(4),
                             .peer = static_cast<std::int32_t>(rng.next()),
                             .call = static_cast<FlightCall>(rng.below(256)),
                             .failed = rng.below(2) == 0,
                             .dtype = static_cast<FlightType>(rng.below(256)),
                             .op = static_cast<FlightOp>(rng.below(256)),
                             .origin = static_cast<std::uint32_t>(rng.next())});
      }
    }
    for (const FlightFinding& finding : compare_flights(flights)) {
      EXPECT_FALSE(finding.text.empty());
      EXPECT_FALSE(finding.ranks.empty());
    }
  }
}

}  // namespace
}  // namespace ddprun
