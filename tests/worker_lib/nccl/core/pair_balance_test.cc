#include "worker_lib/nccl/core/pair_balance.h"

#include <gtest/gtest.h>

#include <vector>

namespace ddprun {
namespace {

// The bytes that ranks send, [from][to]; also the bytes that the receivers expect, [from][to].
using Table = std::vector<std::vector<std::size_t>>;

PairBalance sum_of(const Table& sent, const Table& awaited, std::uint64_t call = 1) {
  PairBalance sum;
  for (std::size_t rank = 0; rank < sent.size(); ++rank) {
    std::vector<std::size_t> in;
    for (const auto& row : awaited) in.push_back(row[rank]);
    sum += of_call(call, balance_of(static_cast<int>(rank), sent[rank], in));
  }
  return sum;
}

std::optional<PairExcess> excess(const Table& sent, const Table& awaited) {
  return excess_in(alone(1, sum_of(sent, awaited)), static_cast<int>(sent.size()));
}

Table table_of(std::size_t ranks) {
  Table table(ranks, std::vector<std::size_t>(ranks));
  for (std::size_t from = 0; from < ranks; ++from) {
    for (std::size_t to = 0; to < ranks; ++to) table[from][to] = 4 * ((from * 7 + to * 3) % 11);
  }
  return table;
}

TEST(PairBalance, PairsThatAgreeLeaveNothing) {
  for (const std::size_t ranks : {1U, 2U, 3U, 64U}) {
    const Table sent = table_of(ranks);
    EXPECT_EQ(excess(sent, sent), std::nullopt) << ranks;
  }
  const Table nothing(3, std::vector<std::size_t>(3));
  EXPECT_EQ(excess(nothing, nothing), std::nullopt);
}

TEST(PairBalance, OnePairThatDisagreesIsFoundWithItsBytes) {
  const Table sent = table_of(5);
  for (int from = 0; from < 5; ++from) {
    for (int to = 0; to < 5; ++to) {
      Table awaited = sent;
      awaited[static_cast<std::size_t>(from)][static_cast<std::size_t>(to)] += 24;
      EXPECT_EQ(excess(sent, awaited), (PairExcess{from, to, -24}));
      EXPECT_EQ(excess(awaited, sent), (PairExcess{from, to, 24}));
    }
  }
}

TEST(PairBalance, MuchMoreThanIsAwaitedIsFoundToo) {
  Table sent = table_of(4);
  const Table awaited = sent;
  sent[3][1] += std::size_t{5} << 40;
  EXPECT_EQ(excess(sent, awaited), (PairExcess{3, 1, std::int64_t{5} << 40}));
}

TEST(PairBalance, AReceiverWhoseSplitsAreWrongIsFound) {
  const Table sent = table_of(4);
  Table awaited = sent;
  awaited[0][2] += 8;
  awaited[1][2] += 4;
  EXPECT_EQ(excess(sent, awaited), (PairExcess{-1, 2, -12}));
  awaited[3][2] -= 12;  // so that its tensor has the right length
  EXPECT_EQ(excess(sent, awaited), (PairExcess{-1, 2, 0}));
}

TEST(PairBalance, ASenderWhoseSplitsAreWrongIsFound) {
  Table sent = table_of(4);
  const Table awaited = sent;
  std::swap(sent[1][0], sent[1][3]);
  EXPECT_EQ(excess(sent, awaited), (PairExcess{1, -1, 0}));
  sent[1][2] += 100;
  EXPECT_EQ(excess(sent, awaited), (PairExcess{1, -1, 100}));
}

TEST(PairBalance, PairsThatHaveNoRankInCommonAreSeveral) {
  const Table sent = table_of(4);
  Table awaited = sent;
  awaited[0][1] += 24;
  awaited[2][3] -= 24;
  EXPECT_EQ(excess(sent, awaited), (PairExcess{-1, -1, 0}));
}

TEST(PairBalance, OnePairOfManyRanksIsFound) {
  const Table sent = table_of(300);
  Table awaited = sent;
  awaited[299][17] += std::size_t{1} << 20;
  EXPECT_EQ(excess(sent, awaited), (PairExcess{299, 17, -(1 << 20)}));
}

TEST(PairBalance, FaultsOfTwoCallsDoNotCancelOut) {
  const Table sent = table_of(3);
  Table more = sent;
  more[0][1] += 4;
  PairBalance sum = sum_of(sent, more, 5);
  sum += sum_of(more, sent, 9);
  EXPECT_NE(sum, PairBalance());
}

}  // namespace
}  // namespace ddprun
