#include "worker_lib/call_ledger.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "worker_lib/cpu/cpu_group.h"

namespace ddprun {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

constexpr CallHeader kSum{.count = 4, .kind = CallKind::kAllReduce, .type = ElementType::kF32};
constexpr CallHeader kBarrier{.kind = CallKind::kBarrier};

CallLedger with_calls(int count) {
  CallLedger ledger;
  for (int i = 0; i < count; ++i) ledger.enter(kSum, 0);
  return ledger;
}

std::vector<std::optional<CallNote>> notes_of(const std::vector<CallLedger>& ledgers) {
  std::vector<std::optional<CallNote>> notes;
  for (const CallLedger& one : ledgers) notes.push_back(read_note(one.note()));
  return notes;
}

TEST(CallLedger, ANoteShowsTheLastCalls) {
  CallLedger ledger = with_calls(100);
  ledger.end_before(101);
  const std::optional<CallNote> note = read_note(ledger.note());
  ASSERT_TRUE(note);
  EXPECT_LE(ledger.note().size(), CpuGroup::kMaxNoteBytes);
  EXPECT_EQ(note->called, 100U);
  EXPECT_EQ(note->entries.size(), CallLedger::kShown);
  ASSERT_NE(note->find(100), nullptr);
  EXPECT_EQ(note->find(100)->call.sequence, 100U);
  EXPECT_EQ(note->find(101), nullptr);
  EXPECT_EQ(note->find(1), nullptr);
}

TEST(CallLedger, ANoteShowsTheOldestCallThatIsNotOverHoweverManyFollow) {
  CallLedger ledger = with_calls(5000);
  ledger.end_before(1000);
  const std::optional<CallNote> note = read_note(ledger.note());
  ASSERT_TRUE(note);
  ASSERT_NE(note->find(1000), nullptr);
  EXPECT_EQ(note->find(1000)->call.sequence, 1000U);
  EXPECT_NE(note->find(993), nullptr);
  EXPECT_EQ(note->called, 5000U);
}

TEST(CallLedger, WhatIsNoNoteIsNotRead) {
  EXPECT_FALSE(read_note(""));
  EXPECT_FALSE(read_note("short"));
  const std::string note = with_calls(3).note();
  EXPECT_FALSE(read_note(note.substr(0, note.size() - 1)));
  EXPECT_FALSE(read_note(std::string(1024, '\xff')));
}

TEST(CallLedger, RanksThatCallTheSameAgreeHoweverFarApart) {
  EXPECT_EQ(find_disagreement(notes_of({with_calls(20), with_calls(1), with_calls(0)})),
            std::nullopt);
  EXPECT_EQ(find_disagreement({}), std::nullopt);
}

TEST(CallLedger, TheFirstCallThatDiffersIsTold) {
  std::vector<CallLedger> ledgers(4, with_calls(2));
  ledgers[0].enter(kSum, 0);
  ledgers[1].enter(kBarrier, 0);
  ledgers[2].enter(kSum, 0);
  ledgers[0].enter(kSum, 0);
  ledgers[1].enter(kSum, 0);
  EXPECT_EQ(find_disagreement(notes_of(ledgers)),
            "the ranks disagree: ranks 0 and 2 called all_reduce #3 of 4 f32 (sum); rank 1 called "
            "barrier #3; rank 3 called nothing there yet");
}

TEST(CallLedger, ADifferenceThatIsOutOfViewIsStillNoticed) {
  std::vector<CallLedger> ledgers(2);
  ledgers[0].enter(kSum, 0);
  ledgers[1].enter(kBarrier, 0);
  for (CallLedger& one : ledgers) {
    for (int i = 0; i < 200; ++i) {
      one.end_before(one.enter(kSum, 0));
    }
  }
  EXPECT_THAT(find_disagreement(notes_of(ledgers)).value_or(""),
              StartsWith("the ranks disagree in a call before all_reduce #"));
}

TEST(CallLedger, CallsOnDevicesThatDoNotBelongTogetherDiffer) {
  std::vector<CallLedger> ledgers(2, with_calls(1));
  ledgers[0].enter(kSum, 0);
  ledgers[1].enter(kSum, 1);
  EXPECT_THAT(find_disagreement(notes_of(ledgers)).value_or(""),
              HasSubstr("ranks 0 and 1 called all_reduce #2 of 4 f32 (sum) with tensors on devices "
                        "that do not belong together"));
}

TEST(CallLedger, WhoHasNotComeIsNamedWithTheirLastCalls) {
  const auto notes = notes_of({with_calls(7), with_calls(6), with_calls(7), with_calls(0)});
  const MissingRanks missing = find_missing(7, notes);
  EXPECT_THAT(missing.ranks, ElementsAre(1, 3));
  EXPECT_EQ(missing.text,
            "ranks 1 and 3 have not come (rank 1 called last all_reduce #6 of 4 f32 (sum); rank 3 "
            "has called nothing yet)");
  EXPECT_THAT(find_missing(6, std::span(notes).first(3)).ranks, IsEmpty());
}

}  // namespace
}  // namespace ddprun
