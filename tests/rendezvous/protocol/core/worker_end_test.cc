#include "rendezvous/protocol/core/worker_end.h"

#include <gtest/gtest.h>

#include <csignal>
#include <vector>

namespace ddprun {
namespace {

WorkerEnd end_of(int rank, EndKind kind, int code) {
  WorkerEnd end;
  end.rank = Rank(rank);
  end.local_rank = LocalRank(rank % 2);
  end.kind = kind;
  end.code = code;
  end.host = "node0";
  end.pid = 4711;
  return end;
}

TEST(WorkerEnd, DescribesHowAndWhereAWorkerEnded) {
  EXPECT_EQ(describe(end_of(3, EndKind::kExited, 7)),
            "rank 3 (local rank 1 on node0, pid 4711) exited with code 7");
  WorkerEnd crashed = end_of(2, EndKind::kSignaled, SIGSEGV);
  crashed.core_dumped = true;
  EXPECT_EQ(describe(crashed),
            "rank 2 (local rank 0 on node0, pid 4711) was killed by SIGSEGV (core dumped)");
  WorkerEnd starved = end_of(2, EndKind::kSignaled, SIGKILL);
  starved.out_of_memory = OutOfMemory::kSure;
  EXPECT_EQ(describe(starved),
            "rank 2 (local rank 0 on node0, pid 4711) was killed by SIGKILL for want of memory "
            "(out-of-memory kill, counted in its control group)");
  starved.out_of_memory = OutOfMemory::kLikely;
  EXPECT_EQ(describe(starved),
            "rank 2 (local rank 0 on node0, pid 4711) was killed by SIGKILL, probably for want of "
            "memory (the kernel killed a process for that meanwhile)");
  WorkerEnd lost = end_of(0, EndKind::kNodeLost, 0);
  lost.node_rank = NodeRank(1);
  lost.message = "nothing was heard of it for 5.0 s";
  EXPECT_EQ(describe(lost), "node 1 (node0) was lost: nothing was heard of it for 5.0 s");
}

TEST(WorkerEnd, ExitCodeIsTheWorkersOwnOr128PlusTheSignal) {
  EXPECT_EQ(exit_code_of(end_of(0, EndKind::kExited, 7)), 7);
  EXPECT_EQ(exit_code_of(end_of(0, EndKind::kSignaled, SIGKILL)), 137);
  EXPECT_EQ(exit_code_of(end_of(0, EndKind::kNotStarted, 2)), 64);
  EXPECT_EQ(exit_code_of(end_of(0, EndKind::kNodeLost, 0)), 68);
}

TEST(WorkerEnd, TheEarlierEndIsTheLikelierCause) {
  WorkerEnd early = end_of(1, EndKind::kExited, 1);
  early.age = std::chrono::milliseconds(20);
  const WorkerEnd late = end_of(0, EndKind::kSignaled, SIGKILL);
  EXPECT_TRUE(is_likelier_cause(early, late));
  EXPECT_FALSE(is_likelier_cause(late, early));
}

TEST(WorkerEnd, ASignalBeatsAnExitCodeOfTheSameInstant) {
  EXPECT_TRUE(
      is_likelier_cause(end_of(1, EndKind::kSignaled, SIGKILL), end_of(0, EndKind::kExited, 1)));
}

TEST(WorkerEnd, AVictimIsNeverTheCauseHoweverEarly) {
  WorkerEnd victim = end_of(0, EndKind::kSignaled, SIGTERM);
  victim.after_stop = true;
  victim.age = std::chrono::hours(1);
  EXPECT_FALSE(is_likelier_cause(victim, end_of(1, EndKind::kExited, 1)));
}

TEST(WorkerEnd, WhoNamesAnotherRankAsItsReasonIsNotTheCauseHoweverEarly) {
  WorkerEnd victim{.kind = EndKind::kSignaled, .code = 6};
  victim.blames = 3;
  victim.age = std::chrono::seconds(2);
  WorkerEnd cause{.kind = EndKind::kExited, .code = 1};
  cause.rank = Rank(3);
  cause.age = std::chrono::seconds(1);
  EXPECT_TRUE(is_likelier_cause(cause, victim));
  EXPECT_FALSE(is_likelier_cause(victim, cause));
  WorkerEnd stopped = cause;
  stopped.after_stop = true;
  EXPECT_TRUE(is_likelier_cause(victim, stopped)) << "what ddprun ended is never the cause";
}

WorkerEnd blaming(int rank, int blamed, int age_ms) {
  WorkerEnd end = end_of(rank, EndKind::kExited, 1);
  end.blames = blamed;
  end.age = std::chrono::milliseconds(age_ms);
  return end;
}

std::vector<int> in_order(std::vector<WorkerEnd> ends) {
  put_cause_first(ends);
  std::vector<int> ranks;
  for (const WorkerEnd& end : ends) ranks.push_back(end.rank.value);
  return ranks;
}

TEST(PutCauseFirst, WhomTheFirstBlamesIsFirstWhereItsEndIsKnown) {
  using Ranks = std::vector<int>;
  EXPECT_EQ(in_order({blaming(0, 1, 30), blaming(1, 2, 20)}), (Ranks{1, 0})) << "2 is not known";
  EXPECT_EQ(in_order({blaming(0, 1, 30), blaming(2, 7, 25), blaming(1, 2, 20)}), (Ranks{2, 0, 1}));
  EXPECT_EQ(in_order({blaming(0, 1, 30), blaming(1, 0, 20)}), (Ranks{0, 1})) << "a circle";
  EXPECT_TRUE(in_order({}).empty());
}

TEST(PutCauseFirst, WhoWasStoppedIsFirstOnlyIfItIsBlamedAndCrashed) {
  using Ranks = std::vector<int>;
  WorkerEnd blamed = end_of(1, EndKind::kSignaled, SIGSEGV);
  blamed.after_stop = true;
  WorkerEnd other = end_of(2, EndKind::kSignaled, SIGSEGV);
  other.after_stop = true;
  std::vector<WorkerEnd> ends{blaming(0, 1, 30), other, blamed};
  EXPECT_EQ(in_order(ends), (Ranks{1, 0, 2}));
  ends[2].code = SIGTERM;
  EXPECT_EQ(in_order(ends).front(), 0) << "ddprun has ended it";
  ends[2].code = SIGKILL;
  EXPECT_EQ(in_order(ends).front(), 0);
  ends[2].out_of_memory = OutOfMemory::kSure;
  EXPECT_EQ(in_order(ends).front(), 1) << "the kernel has";
  ends[2] = end_of(1, EndKind::kExited, 3);
  ends[2].after_stop = true;
  EXPECT_EQ(in_order(ends).front(), 0) << "an exit after the stop is never first";
}

TEST(PossibleFirsts, WhoBlamesTheFirstIsNone) {
  std::vector<WorkerEnd> ends{blaming(1, 7, 20), blaming(0, 1, 20)};
  ends[1].node_rank = NodeRank(1);
  EXPECT_EQ(count_possible_firsts(ends), 1u);
  ends[1].blames = 7;
  EXPECT_EQ(count_possible_firsts(ends), 2u);
}

TEST(PossibleFirsts, OnOneNodeTheKernelsOrderTellsBetweenNodesOnlyWhatIsFarApart) {
  const auto end = [](const char* host, int age_ms) {
    WorkerEnd one{.kind = EndKind::kExited, .code = 1};
    one.host = host;
    one.node_rank = NodeRank(host[0] - 'a');
    one.age = std::chrono::milliseconds(age_ms);
    return one;
  };
  EXPECT_EQ(count_possible_firsts({}), 0u);
  EXPECT_EQ(count_possible_firsts({end("a", 100), end("a", 99)}), 1u);
  EXPECT_EQ(count_possible_firsts({end("a", 100), end("a", 100)}), 2u) << "seen at one instant";
  EXPECT_EQ(count_possible_firsts({end("a", 100), end("b", 80), end("c", 79)}), 2u);
  std::vector<WorkerEnd> ends{end("a", 100), end("b", 100)};
  ends[1].blames = 0;
  EXPECT_EQ(count_possible_firsts(ends), 1u) << "it says whose victim it is";
  ends[1] = end("b", 100);
  ends[1].after_stop = true;
  EXPECT_EQ(count_possible_firsts(ends), 1u);
  ends[1] = {.kind = EndKind::kNodeLost};
  EXPECT_EQ(count_possible_firsts(ends), 1u) << "when a node was lost nobody knows so exactly";
}

TEST(PossibleFirsts, OfNodesThatFellSilentNobodyKnowsWhichWasFirstWithinAHeartbeat) {
  WorkerEnd lost{.kind = EndKind::kNodeLost};
  lost.age = std::chrono::milliseconds(5900);
  lost.unseen = std::chrono::milliseconds(1250);
  std::vector<WorkerEnd> ends{lost, lost, lost};
  ends[1].age = std::chrono::milliseconds(5100);
  ends[2].age = std::chrono::milliseconds(4600);
  EXPECT_EQ(count_possible_firsts(ends), 2u) << "the third was heard when the first was dead";
  ends[0].unseen = Duration(0);
  EXPECT_EQ(count_possible_firsts(ends), 1u) << "it has said when";
}

TEST(PossibleFirsts, TwoAgentsOnOneHostAreTwoNodes) {
  std::vector<WorkerEnd> ends{end_of(0, EndKind::kExited, 1), end_of(2, EndKind::kExited, 1)};
  ends[0].age = std::chrono::milliseconds(100);
  ends[1].age = std::chrono::milliseconds(90);
  EXPECT_EQ(count_possible_firsts(ends), 1u);
  ends[1].node_rank = NodeRank(1);
  EXPECT_EQ(count_possible_firsts(ends), 2u) << "each agent has a clock of its own";
}

TEST(KeepLikeliest, PutsTheCauseFirstAndSaysHowManyItLeavesOut) {
  std::vector<WorkerEnd> ends;
  for (int rank = 0; rank < 1000; ++rank) {
    ends.push_back(end_of(rank, EndKind::kExited, 1));
    ends.back().after_stop = rank != 700;
    ends.back().stderr_tail.assign(kMaxTailLines, std::string(kMaxTailLineBytes, 'x'));
  }
  EXPECT_EQ(keep_likeliest(ends), 1000 - kMaxEnds);
  ASSERT_EQ(ends.size(), kMaxEnds);
  EXPECT_EQ(ends.front().rank, Rank(700));
  EXPECT_EQ(ends.front().stderr_tail.size(), kMaxTailLines);
  for (std::size_t i = 1; i < ends.size(); ++i) {
    ASSERT_EQ(ends[i].stderr_tail.size(), 1u) << "what it said last, to compare it";
    EXPECT_EQ(ends[i].stderr_tail[0].size(), 200u);
  }
}

TEST(KeepLikeliest, LeavesAFewShortEndsAsTheyAre) {
  std::vector<WorkerEnd> ends{end_of(0, EndKind::kSignaled, SIGKILL),
                              end_of(1, EndKind::kExited, 1)};
  ends[0].stderr_tail = {"one", "two"};
  ends[0].message = "why";
  const std::vector<WorkerEnd> before = ends;
  EXPECT_EQ(keep_likeliest(ends), 0u);
  EXPECT_EQ(ends, before);
}

TEST(KeepLikeliest, ClipsWhatIsTooLong) {
  std::vector<WorkerEnd> ends{end_of(0, EndKind::kExited, 1)};
  ends[0].message.assign(1'000'000, 'm');
  ends[0].stderr_tail.assign(50, std::string(1'000'000, 'x'));
  ends[0].stderr_tail.back() = "the last";
  keep_likeliest(ends);
  EXPECT_EQ(ends[0].message.size(), kMaxMessageBytes);
  ASSERT_EQ(ends[0].stderr_tail.size(), kMaxTailLines);
  EXPECT_EQ(ends[0].stderr_tail.front().size(), kMaxTailLineBytes);
  EXPECT_EQ(ends[0].stderr_tail.back(), "the last");
}

TEST(Clipped, CutsBetweenCharacters) {
  EXPECT_EQ(clipped("short", 5), "short");
  EXPECT_EQ(clipped("longer", 5), "lo...");
  EXPECT_EQ(clipped("aéé", 5), "aéé");
  EXPECT_EQ(clipped("aééx", 5), "a...") << "not half of a character";
}

}  // namespace
}  // namespace ddprun
