#include "rendezvous/protocol/core/hang_analysis.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/exit_codes.h"

namespace ddprun {
namespace {

using std::chrono::seconds;
using testing::ElementsAre;
using testing::HasSubstr;

WorkerSnapshot in_collective(int rank, std::int64_t number, int waited = 60) {
  return {.rank = Rank(rank),
          .host = "h",
          .flight = FlightState::kWaiting,
          .collective = number,
          .call = "all_reduce of 4096 bytes",
          .waited = seconds(waited)};
}
WorkerSnapshot outside(int rank, std::int64_t number) {
  return {.rank = Rank(rank), .host = "h", .flight = FlightState::kOutside, .collective = number};
}
WorkerSnapshot in_message(int rank, int peer) {
  return {.rank = Rank(rank),
          .host = "h",
          .flight = FlightState::kWaiting,
          .call = "recv of 8 bytes from rank " + std::to_string(peer),
          .peer = peer,
          .waited = seconds(9)};
}
WorkerSnapshot without_record(int rank, std::int64_t step, bool is_late = true) {
  return {.rank = Rank(rank), .host = "h", .waited = seconds(30), .is_late = is_late, .step = step};
}

std::vector<int> named(const std::vector<WorkerSnapshot>& snapshots) {
  std::vector<int> ranks;
  for (const WorkerEnd& end : hung_ranks(snapshots)) {
    EXPECT_EQ(end.kind, EndKind::kHung);
    EXPECT_FALSE(end.after_stop);
    ranks.push_back(end.rank.value);
  }
  return ranks;
}

TEST(HangAnalysis, WhoHasNotComeToTheCollectiveIsNamed) {
  const std::vector<WorkerSnapshot> all{outside(2, 56), in_collective(0, 57), in_collective(1, 57),
                                        in_collective(3, 57, 61)};
  const std::vector<WorkerEnd> ends = hung_ranks(all);
  ASSERT_EQ(ends.size(), 1u);
  EXPECT_EQ(ends[0].rank, Rank(2));
  EXPECT_EQ(describe(ends[0]),
            "rank 2 (local rank 0 on h) hangs: it has not come to all_reduce of 4096 bytes "
            "(collective 57), where ranks 0-1,3 have waited 61.0 s");
  EXPECT_EQ(exit_code_of(ends[0]), to_int(ExitCode::kHung));
}

TEST(HangAnalysis, WhoIsOutsideOfALaterOneHasComeAndIsNotNamed) {
  EXPECT_THAT(named({in_collective(0, 57), outside(1, 57), outside(2, 58), outside(3, 56)}),
              ElementsAre(3));
}

TEST(HangAnalysis, TheEarliestCollectiveIsTheOneThatCounts) {
  EXPECT_THAT(named({in_collective(0, 58), in_collective(1, 57), outside(2, 56)}), ElementsAre(2));
  // Rank 1 hangs in collective 57, which rank 0 has left. No other rank is late.
  EXPECT_THAT(named({in_collective(0, 58), in_collective(1, 57)}), ElementsAre(1));
}

TEST(HangAnalysis, WhoWaitsForAMessageInsteadIsNamedOnlyWhereNobodyIsOutside) {
  EXPECT_THAT(named({in_collective(0, 5), in_message(1, 2), outside(2, 4)}), ElementsAre(2));
  EXPECT_THAT(named({in_collective(0, 5), in_message(1, 0)}), ElementsAre(1));
}

TEST(HangAnalysis, WhereAllHaveComeAllAreNamed) {
  const std::vector<WorkerEnd> ends = hung_ranks({in_collective(1, 7), in_collective(0, 7)});
  ASSERT_EQ(ends.size(), 2u);
  EXPECT_EQ(ends[0].rank, Rank(0));
  EXPECT_THAT(ends[0].message, HasSubstr("all known participants are in"));
  EXPECT_EQ(count_possible_firsts(ends), 2u) << "nobody was first";
}

TEST(HangAnalysis, WhereAllHaveComeTheOneThatIsStoppedIsNamed) {
  WorkerSnapshot stopped = in_collective(1, 7);
  stopped.is_stopped = true;
  EXPECT_THAT(named({in_collective(0, 7), stopped, in_collective(2, 7)}), ElementsAre(1));
  EXPECT_THAT(named({in_collective(0, 7), stopped, outside(2, 6)}), ElementsAre(2))
      << "who has not come is what the others wait for";
}

TEST(HangAnalysis, WhoMakesAnotherCallThanMostIsNamed) {
  std::vector<WorkerSnapshot> all{in_collective(0, 57), in_collective(1, 57),
                                  in_collective(2, 57, 61), outside(3, 56)};
  all[1].call = "all_gather of 4194304 bytes";
  const std::vector<WorkerEnd> ends = hung_ranks(all);
  ASSERT_EQ(ends.size(), 1u);
  EXPECT_EQ(ends[0].rank, Rank(1));
  EXPECT_EQ(
      ends[0].message,
      "as collective 57 rank 1 is in all_gather of 4194304 bytes, ranks 0,2 are in all_reduce "
      "of 4096 bytes, for 61.0 s");
  EXPECT_THAT(named({all[0], all[1]}), ElementsAre(0, 1)) << "nobody is most";
  all[1].collective = 58;
  EXPECT_THAT(named(all), ElementsAre(3)) << "another collective";
}

TEST(HangAnalysis, SharesOfAllToAllMayDiffer) {
  std::vector<WorkerSnapshot> all{in_collective(0, 7), in_collective(1, 7)};
  all[0].call = "all_to_all of 8 bytes";
  all[1].call = "all_to_all of 9 bytes";
  EXPECT_THAT(hung_ranks(all).front().message, HasSubstr("all known participants"));
}

WorkerSnapshot in_group(WorkerSnapshot one, std::uint64_t group, std::vector<int> ranks) {
  one.group = group;
  one.group_name = "tp" + std::to_string(group);
  one.group_ranks = std::move(ranks);
  return one;
}

TEST(HangAnalysis, WhoIsNotOfAGroupIsNotAwaitedThere) {
  const std::vector<WorkerEnd> ends = hung_ranks(
      {in_group(in_collective(0, 3), 1, {0, 2}), outside(1, 99), outside(2, 40), outside(3, 1)});
  ASSERT_EQ(ends.size(), 1u);
  EXPECT_EQ(ends[0].rank, Rank(2));
  EXPECT_EQ(ends[0].message,
            "it has not come to all_reduce of 4096 bytes (collective 3 of group tp1), where rank 0 "
            "has waited 60.0 s");
}

TEST(HangAnalysis, CollectivesOfDifferentGroupsAreNotCompared) {
  // Rank 1 waits for rank 2 in the first collective of their group. The world waits for both.
  EXPECT_THAT(named({in_collective(0, 50), in_group(in_collective(1, 1), 9, {1, 2}),
                     in_group(outside(2, 0), 9, {}), in_collective(3, 50)}),
              ElementsAre(2));
  // All wait. The chain of waiting ranks leads to the stopped one.
  WorkerSnapshot stopped = in_group(in_collective(2, 1), 9, {});
  stopped.is_stopped = true;
  EXPECT_THAT(named({in_collective(0, 50), in_group(in_collective(1, 1), 9, {1, 2}), stopped}),
              ElementsAre(2));
}

TEST(HangAnalysis, RanksThatWaitInACircleOfGroupsAreNamed) {
  EXPECT_THAT(
      named({in_group(in_collective(0, 1), 1, {0, 1}), in_group(in_collective(1, 1), 2, {0, 1})}),
      ElementsAre(0))
      << "the last of the circle";
}

TEST(HangAnalysis, TheRanksOfAGroupAreToldOnce) {
  std::vector<WorkerSnapshot> all{in_group(in_collective(0, 1), 1, {0, 1}),
                                  in_group(in_collective(1, 1), 1, {0, 1}),
                                  in_group(in_collective(2, 1), 2, {2})};
  keep_first_snapshots(all);
  EXPECT_THAT(all[0].group_ranks, ElementsAre(0, 1));
  EXPECT_TRUE(all[1].group_ranks.empty());
  EXPECT_THAT(all[2].group_ranks, ElementsAre(2));
}

TEST(HangAnalysis, AnUnknownRankThatIsLateIsBehindWhereNoRecordSaysWho) {
  EXPECT_THAT(named({in_collective(0, 7), without_record(1, 3), without_record(2, 9, false)}),
              ElementsAre(1));
}

TEST(HangAnalysis, MessagesLeadToTheOtherEnd) {
  EXPECT_THAT(named({in_message(0, 1), outside(1, 4), in_message(2, 1)}), ElementsAre(1));
  EXPECT_THAT(named({in_message(0, 1), in_message(1, 0)}), ElementsAre(0, 1)) << "a deadlock";
}

TEST(HangAnalysis, WithoutRecordsTheOneThatIsStoppedIsNamed) {
  WorkerSnapshot stopped = without_record(2, 9);
  stopped.is_stopped = true;
  EXPECT_THAT(named({without_record(0, 8), without_record(1, 9), stopped}), ElementsAre(2));
  EXPECT_THAT(hung_ranks({without_record(0, 8), stopped}).front().message,
              HasSubstr("its process is stopped"));
}

TEST(HangAnalysis, WithoutRecordsTheLowestStepIsNamed) {
  EXPECT_THAT(named({without_record(0, 9), without_record(1, 8), without_record(2, 8)}),
              ElementsAre(1, 2));
  EXPECT_THAT(named({without_record(0, 9, false), without_record(1, 9)}), ElementsAre(1));
  EXPECT_THAT(named({WorkerSnapshot{.rank = Rank(0)}, WorkerSnapshot{.rank = Rank(1)}}),
              ElementsAre(0, 1));
}

TEST(HangAnalysis, RanksThatDoTheSameShareALine) {
  WorkerSnapshot asleep = outside(4, 56);
  asleep.step = 120;
  asleep.doing = "state S, sleeping (futex_wait)";
  asleep.waited = seconds(62);
  EXPECT_THAT(
      lines_of({in_collective(0, 57), in_collective(2, 57, 61), in_collective(1, 57), asleep}),
      ElementsAre("ranks 0-2: in all_reduce of 4096 bytes (collective 57), for 61.0 s",
                  "rank 4: in no collective; the last one was 56, step 120; state S, sleeping "
                  "(futex_wait), for 62.0 s"));
  std::vector<WorkerSnapshot> many;
  for (int rank = 0; rank < 100; ++rank) many.push_back(outside(rank, rank));
  const std::vector<std::string> lines = lines_of(many);
  ASSERT_EQ(lines.size(), kMaxSeenLines);
  EXPECT_EQ(lines.back(), "... and 69 more");
}

TEST(HangAnalysis, WhatIsToldIsBounded) {
  std::vector<WorkerSnapshot> many;
  for (int rank = 0; rank < 1000; ++rank) {
    many.push_back(rank == 700 ? outside(rank, 1) : in_collective(rank, 2));
    many.back().doing.assign(100'000, 'x');
    many.back().frames.assign(100, std::string(10'000, 'y'));
  }
  keep_first_snapshots(many);
  ASSERT_EQ(many.size(), kMaxSnapshots);
  EXPECT_EQ(many.front().rank, Rank(700)) << "who is in no call first";
  std::size_t bytes = 0;
  for (const WorkerSnapshot& one : many) {
    bytes += one.doing.size() + one.call.size();
    for (const std::string& frame : one.frames) bytes += frame.size();
  }
  EXPECT_LT(bytes, 200'000u);
}

TEST(HangAnalysis, RanksAreWrittenAsRanges) {
  EXPECT_EQ(rank_ranges({}), "");
  EXPECT_EQ(rank_ranges({3}), "3");
  EXPECT_EQ(rank_ranges({0, 1, 2, 5, 7, 8}), "0-2,5,7-8");
}

WorkerSnapshot in_torch(int rank, const std::string& call, std::int64_t step = 9) {
  WorkerSnapshot one = without_record(rank, step);
  one.waits_in = call;
  return one;
}

TEST(HangAnalysis, WhoWaitsInTorchDistributedIsNotBlamed) {
  const std::vector<WorkerEnd> ends =
      hung_ranks({in_torch(0, "torch.distributed.all_reduce", 7), without_record(1, 9),
                  in_torch(2, "torch.distributed.all_reduce")});
  ASSERT_EQ(ends.size(), 1u);
  EXPECT_EQ(ends[0].rank, Rank(1));
  EXPECT_EQ(ends[0].message,
            "it has not come to torch.distributed.all_reduce, where ranks 0,2 have waited 30.0 s; "
            "its last step was 9");
  EXPECT_THAT(named({in_torch(0, "torch.distributed.barrier"), without_record(1, 9, false)}),
              ElementsAre(1))
      << "also one that reports no steps";
}

TEST(HangAnalysis, WhoIsOutsideButWaitsInAMessageWithoutARecordIsNotBlamed) {
  WorkerSnapshot receives = outside(1, 56);
  receives.waits_in = "torch.distributed.recv";
  EXPECT_THAT(named({in_collective(0, 57), receives, outside(2, 56)}), ElementsAre(2));
  EXPECT_THAT(named({in_collective(0, 57), receives}), ElementsAre(1)) << "nobody else remains";
  EXPECT_THAT(lines_of({receives}),
              ElementsAre(HasSubstr("the last one was 56; waiting in torch.distributed.recv")));
}

TEST(HangAnalysis, EachRankThatWaitsNowhereIsACandidate) {
  EXPECT_THAT(named({in_torch(0, "c10d::Work::wait"), without_record(1, 8), without_record(2, 9)}),
              ElementsAre(1, 2));
  WorkerSnapshot stopped = without_record(2, 9);
  stopped.is_stopped = true;
  EXPECT_THAT(named({in_torch(0, "c10d::Work::wait"), without_record(1, 8), stopped}),
              ElementsAre(2));
}

TEST(HangAnalysis, WhereAllWaitInTorchDistributedAllAreNamed) {
  const std::vector<WorkerEnd> ends = hung_ranks(
      {in_torch(0, "torch.distributed.all_reduce"), in_torch(1, "torch.distributed.barrier", 3)});
  ASSERT_EQ(ends.size(), 2u);
  EXPECT_THAT(ends[0].message, HasSubstr("all ranks that were seen wait in torch.distributed"));
  EXPECT_THAT(lines_of({in_torch(0, "torch.distributed.all_reduce")}),
              ElementsAre(HasSubstr("rank 0: waiting in torch.distributed.all_reduce, step 9")));
}

TEST(HangAnalysis, StacksOfThoseThatWaitAreGivenUpFirst) {
  std::vector<WorkerSnapshot> all;
  for (int rank = 0; rank < 16; ++rank) {
    all.push_back(rank == 15 ? without_record(rank, 9) : in_torch(rank, "c10d::Work::wait"));
    all.back().frames = {"main"};
  }
  keep_first_snapshots(all);
  EXPECT_EQ(all.front().rank, Rank(15));
  EXPECT_THAT(all.front().frames, ElementsAre("main"));
}

}  // namespace
}  // namespace ddprun
