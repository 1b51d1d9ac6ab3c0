#include "worker_lib/nccl/collective_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "worker_lib/cpu_group/cpu_group.h"

namespace ddprun {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

constexpr CallHeader kSum{.count = 4, .kind = CallKind::kAllReduce, .type = ElementType::kF32};
constexpr CallHeader kBarrier{.kind = CallKind::kBarrier};

CollectiveLog with_calls(int count) {
  CollectiveLog log;
  for (int i = 0; i < count; ++i) log.enter(kSum, 0);
  return log;
}

std::vector<std::optional<CallNote>> notes_of(const std::vector<CollectiveLog>& logs) {
  std::vector<std::optional<CallNote>> notes;
  for (const CollectiveLog& one : logs) notes.push_back(read_note(one.note()));
  return notes;
}

TEST(CollectiveLog, ANoteShowsTheLastCalls) {
  CollectiveLog log = with_calls(100);
  log.end_before(101);
  const std::optional<CallNote> note = read_note(log.note());
  ASSERT_TRUE(note);
  EXPECT_LE(log.note().size(), kMaxNoteBytes);
  EXPECT_EQ(note->called, 100U);
  EXPECT_EQ(note->entries.size(), CollectiveLog::kShown);
  ASSERT_NE(note->find(100), nullptr);
  EXPECT_EQ(note->find(100)->call.sequence, 100U);
  EXPECT_EQ(note->find(101), nullptr);
  EXPECT_EQ(note->find(1), nullptr);
}

TEST(CollectiveLog, ANoteShowsTheOldestCallThatIsNotOverHoweverManyFollow) {
  CollectiveLog log = with_calls(5000);
  log.end_before(1000);
  const std::optional<CallNote> note = read_note(log.note());
  ASSERT_TRUE(note);
  ASSERT_NE(note->find(1000), nullptr);
  EXPECT_EQ(note->find(1000)->call.sequence, 1000U);
  EXPECT_NE(note->find(993), nullptr);
  EXPECT_EQ(note->called, 5000U);
}

TEST(CollectiveLog, WhatIsNoNoteIsNotRead) {
  EXPECT_FALSE(read_note(""));
  EXPECT_FALSE(read_note("short"));
  const std::string note = with_calls(3).note();
  EXPECT_FALSE(read_note(note.substr(0, note.size() - 1)));
  EXPECT_FALSE(read_note(std::string(1024, '\xff')));
}

TEST(CollectiveLog, RanksThatCallTheSameAgreeHoweverFarApart) {
  EXPECT_EQ(find_disagreement(notes_of({with_calls(20), with_calls(1), with_calls(0)})),
            std::nullopt);
  EXPECT_EQ(find_disagreement({}), std::nullopt);
}

TEST(CollectiveLog, TheFirstCallThatDiffersIsTold) {
  std::vector<CollectiveLog> logs(4, with_calls(2));
  logs[0].enter(kSum, 0);
  logs[1].enter(kBarrier, 0);
  logs[2].enter(kSum, 0);
  logs[0].enter(kSum, 0);
  logs[1].enter(kSum, 0);
  EXPECT_EQ(find_disagreement(notes_of(logs)),
            "the ranks disagree: ranks 0 and 2 called all_reduce #3 of 4 f32 (sum); rank 1 called "
            "barrier #3; rank 3 called nothing there yet");
}

TEST(CollectiveLog, ADifferenceThatIsOutOfViewIsStillNoticed) {
  std::vector<CollectiveLog> logs(2);
  logs[0].enter(kSum, 0);
  logs[1].enter(kBarrier, 0);
  for (CollectiveLog& one : logs) {
    for (int i = 0; i < 200; ++i) {
      one.end_before(one.enter(kSum, 0));
    }
  }
  EXPECT_THAT(find_disagreement(notes_of(logs)).value_or(""),
              StartsWith("the ranks disagree in a call before all_reduce #"));
}

TEST(CollectiveLog, CallsOnDevicesThatDoNotBelongTogetherDiffer) {
  std::vector<CollectiveLog> logs(2, with_calls(1));
  logs[0].enter(kSum, 0);
  logs[1].enter(kSum, 1);
  EXPECT_THAT(find_disagreement(notes_of(logs)).value_or(""),
              HasSubstr("ranks 0 and 1 called all_reduce #2 of 4 f32 (sum) with tensors on devices "
                        "that do not belong together"));
}

// --- all_to_all: the bytes that ranks send, and that receivers expect; [from][to]

using Table = std::vector<std::vector<std::size_t>>;

constexpr CallHeader kExchange{.kind = CallKind::kAllToAll, .type = ElementType::kF32};

const Table kEight{{8, 8, 8}, {8, 8, 8}, {8, 8, 8}};

void exchange(CollectiveLog& log, std::size_t rank, const Table& sent, const Table& awaited) {
  std::vector<std::size_t> in;
  for (const auto& row : awaited) in.push_back(row[rank]);
  log.enter(kExchange, 0, balance_of(static_cast<int>(rank), sent[rank], in));
}

// Returns the logs of three ranks; each has made two other calls before.
std::vector<CollectiveLog> after_exchange(const Table& sent, const Table& awaited) {
  std::vector<CollectiveLog> logs(3, with_calls(2));
  for (std::size_t rank = 0; rank < 3; ++rank) exchange(logs[rank], rank, sent, awaited);
  return logs;
}

TEST(CollectiveLog, PairsMayHaveSizesOfTheirOwn) {
  const Table sent{{0, 4, 100}, {8, 0, 0}, {12, 400, 8}};
  std::vector<CollectiveLog> logs = after_exchange(sent, sent);
  EXPECT_EQ(find_disagreement(notes_of(logs)), std::nullopt);
  for (CollectiveLog& one : logs) one.enter(kSum, 0);
  EXPECT_EQ(find_disagreement(notes_of(logs)), std::nullopt);
}

TEST(CollectiveLog, APairThatDisagreesInAnAllToAllIsNamedWithTheDifference) {
  Table awaited = kEight;
  awaited[0][2] = 32;
  std::vector<CollectiveLog> logs = after_exchange(kEight, awaited);
  EXPECT_EQ(
      find_disagreement(notes_of(logs)),
      "the ranks disagree in all_to_all #3 of f32: rank 0 sends rank 2 24 B (6 f32) less than "
      "rank 2 awaits");
  for (CollectiveLog& one : logs) one.enter(kBarrier, 0);
  EXPECT_THAT(find_disagreement(notes_of(logs)).value_or(""), HasSubstr("all_to_all #3"))
      << "and the calls behind it do not matter";
  EXPECT_EQ(
      find_disagreement(notes_of(after_exchange(awaited, kEight))),
      "the ranks disagree in all_to_all #3 of f32: rank 0 sends rank 2 24 B (6 f32) more than "
      "rank 2 awaits");
}

TEST(CollectiveLog, ARankWhoseSplitsAreWrongIsNamed) {
  Table awaited = kEight;
  awaited[0][1] = 4;
  awaited[2][1] = 12;
  EXPECT_EQ(find_disagreement(notes_of(after_exchange(kEight, awaited))),
            "the ranks disagree in all_to_all #3 of f32: several ranks send rank 1 what it does "
            "not expect, but the same amount in all");
  Table sent = kEight;
  sent[2] = {16, 10, 8};
  EXPECT_EQ(find_disagreement(notes_of(after_exchange(sent, kEight))),
            "the ranks disagree in all_to_all #3 of f32: rank 2 sends several ranks what they do "
            "not expect, 10 B more in all");
}

TEST(CollectiveLog, PairsThatDisagreeAllOverAreTold) {
  Table awaited = kEight;
  awaited[0][1] = 4;
  awaited[1][2] = 12;
  EXPECT_EQ(find_disagreement(notes_of(after_exchange(kEight, awaited))),
            "the ranks disagree in all_to_all #3 of f32: several ranks send several others what "
            "these do not expect");
}

TEST(CollectiveLog, AnAllToAllIsJudgedWhenAllRanksAreInIt) {
  Table awaited = kEight;
  awaited[0][2] = 32;
  std::vector<CollectiveLog> logs(3, with_calls(2));
  exchange(logs[0], 0, kEight, awaited);
  exchange(logs[2], 2, kEight, awaited);
  EXPECT_EQ(find_disagreement(notes_of(logs)), std::nullopt);
  std::vector<std::optional<CallNote>> notes = notes_of(logs);
  notes[1].reset();
  EXPECT_EQ(find_disagreement(notes), std::nullopt);
  exchange(logs[1], 1, kEight, awaited);
  EXPECT_THAT(find_disagreement(notes_of(logs)).value_or(""), HasSubstr("rank 0 sends rank 2"));
}

TEST(CollectiveLog, AnAllToAllThatIsOutOfViewIsStillNoticed) {
  Table awaited = kEight;
  awaited[0][2] = 32;
  std::vector<CollectiveLog> logs = after_exchange(kEight, awaited);
  for (CollectiveLog& one : logs) {
    for (int i = 0; i < 200; ++i) {
      one.end_before(one.enter(kBarrier, 0));
    }
  }
  EXPECT_THAT(find_disagreement(notes_of(logs)).value_or(""),
              StartsWith("the ranks disagree in an all_to_all up to barrier #"));
  // A log whose first visible entries are different cannot tell which call it was, either.
  for (int i = 0; i < 5; ++i) logs[1].end_before(logs[1].enter(kBarrier, 0));
  EXPECT_THAT(find_disagreement(notes_of(logs)).value_or(""),
              StartsWith("the ranks disagree in an all_to_all up to barrier #"));
}

TEST(CollectiveLog, AnotherCallThanAnAllToAllIsToldFirst) {
  Table awaited = kEight;
  awaited[0][2] = 32;
  std::vector<CollectiveLog> logs(3, with_calls(2));
  exchange(logs[0], 0, kEight, awaited);
  logs[1].enter(kBarrier, 0);
  exchange(logs[2], 2, kEight, awaited);
  EXPECT_EQ(find_disagreement(notes_of(logs)),
            "the ranks disagree: ranks 0 and 2 called all_to_all #3 of f32; rank 1 called barrier "
            "#3");
}

// --- messages

// In a world of two: records in log 0 a message to rank 1, or in log 1 its receive. Each is a
// call.
void send(std::vector<CollectiveLog>& logs, std::uint64_t call, std::uint64_t bytes) {
  logs[0].enter_message(call, {.bytes = bytes, .peer = 1, .is_send = 1});
}
void recv(std::vector<CollectiveLog>& logs, std::uint64_t call, std::uint64_t bytes) {
  logs[1].enter_message(call, {.bytes = bytes, .peer = 0});
}

TEST(CollectiveLog, MessagesOfOneSizeAgreeHoweverFarTheSenderIsAhead) {
  std::vector<CollectiveLog> logs(2);
  for (std::uint64_t i = 1; i <= 1000; ++i) send(logs, i, i * 8);
  logs[0].end_messages_before(1);
  EXPECT_LE(logs[0].note().size(), kMaxNoteBytes);
  EXPECT_EQ(find_disagreement(notes_of(logs)), std::nullopt);
  for (std::uint64_t i = 1; i <= 1000; ++i) {
    recv(logs, i, i * 8);
    logs[1].end_messages_before(i);
    logs[0].end_messages_before(i + 5);
    EXPECT_EQ(find_disagreement(notes_of(logs)), std::nullopt) << i;
  }
}

TEST(CollectiveLog, AMessageOfAnotherSizeIsTold) {
  std::vector<CollectiveLog> logs(2);
  for (std::uint64_t i = 1; i <= 100; ++i) {
    send(logs, i, 8);
    recv(logs, i, 8);
  }
  send(logs, 101, 400);
  recv(logs, 101, 800);
  for (std::uint64_t i = 102; i <= 107; ++i) send(logs, i, 8);  // and these are over, too
  logs[0].end_messages_before(108);
  logs[1].end_messages_before(101);
  EXPECT_EQ(find_disagreement(notes_of(logs)),
            "the ranks disagree: rank 0's send #101 to rank 1 is of 400 B, rank 1's recv #101 from "
            "rank 0 of 800 B");
}

TEST(CollectiveLog, AMessageOfAnotherSizeThatIsOutOfViewIsStillNoticed) {
  std::vector<CollectiveLog> logs(2);
  send(logs, 1, 400);
  recv(logs, 1, 200);
  for (std::uint64_t i = 2; i <= 100; ++i) {
    send(logs, i, 8);
    recv(logs, i, 8);
    for (CollectiveLog& one : logs) one.end_messages_before(i);
  }
  EXPECT_THAT(find_disagreement(notes_of(logs)).value_or(""),
              StartsWith("the ranks disagree in the size of a message of rank 0 to rank 1 before"));
}

TEST(CollectiveLog, MessagesOfOtherPairsWaysAndDevicesDoNotBelongTogether) {
  std::vector<CollectiveLog> logs(3);
  logs[0].enter_message(1, {.bytes = 8, .peer = 1, .is_send = 1});
  logs[0].enter_message(1, {.bytes = 16, .peer = 2, .is_send = 1});
  logs[0].enter_message(1, {.bytes = 24, .peer = 1});
  logs[0].enter_message(2, {.bytes = 32, .peer = 1, .place = 1, .is_send = 1});
  // A batch may list the same messages in another order.
  logs[1].enter_message(1, {.bytes = 32, .peer = 0, .place = 1});
  logs[1].enter_message(1, {.bytes = 24, .peer = 0, .is_send = 1});
  logs[1].enter_message(1, {.bytes = 8, .peer = 0});
  logs[2].enter_message(1, {.bytes = 16, .peer = 0});
  EXPECT_EQ(find_disagreement(notes_of(logs)), std::nullopt);
  logs[2].enter_message(2, {.bytes = 8, .peer = 0, .is_send = 1});
  logs[0].enter_message(3, {.bytes = 0, .peer = 2});
  EXPECT_EQ(
      find_disagreement(notes_of(logs)),
      "the ranks disagree: rank 2's send #1 to rank 0 is of 8 B, rank 0's recv #1 from rank 2 "
      "of 0 B");
}

TEST(CollectiveLog, AMessageWaitsUnseenWhenItsPeerShowsNothing) {
  std::vector<CollectiveLog> logs(2);
  recv(logs, 7, 8);
  std::vector<std::optional<CallNote>> notes = notes_of(logs);
  EXPECT_FALSE(logs[1].awaits_unseen(notes));
  notes[0].reset();
  EXPECT_TRUE(logs[1].awaits_unseen(notes));
  logs[1].end_messages_before(8);
  EXPECT_FALSE(logs[1].awaits_unseen(notes));
}

TEST(CollectiveLog, WhoseEndsOfMessagesHaveNotComeIsTold) {
  std::vector<CollectiveLog> logs(4);
  for (int peer = 1; peer < 4; ++peer) logs[0].enter_message(5, {.bytes = 8, .peer = peer});
  logs[0].enter_message(6, {.bytes = 8, .peer = 3, .is_send = 1});
  const std::vector<MessageEntry> messages = logs[0].messages_of(5);
  EXPECT_EQ(messages.size(), 3U);
  // Rank 1 receives, and sends to another device. Rank 2 is ahead.
  logs[1].enter_message(1, {.bytes = 8, .peer = 0});
  logs[1].enter_message(1, {.bytes = 8, .peer = 0, .place = 1, .is_send = 1});
  for (int i = 0; i < 2; ++i) logs[2].enter_message(1, {.bytes = 8, .peer = 0, .is_send = 1});
  const MissingEnds missing = find_missing_ends(messages, 0, notes_of(logs));
  EXPECT_THAT(missing.ranks, ElementsAre(1, 3));
  EXPECT_TRUE(missing.is_sure);
  // Rank 3's message for rank 0 may be older than all that its note shows.
  for (int i = 0; i < 100; ++i) logs[3].enter_message(1, {.bytes = 8, .peer = 1, .is_send = 1});
  EXPECT_FALSE(find_missing_ends(messages, 0, notes_of(logs)).is_sure);
}

TEST(CollectiveLog, WhoHasNotComeIsNamedWithTheirLastCalls) {
  const auto notes = notes_of({with_calls(7), with_calls(6), with_calls(7), with_calls(0)});
  const MissingRanks missing = find_missing(7, notes);
  EXPECT_THAT(missing.ranks, ElementsAre(1, 3));
  EXPECT_EQ(missing.text,
            "ranks 1 and 3 have not come (rank 1 called last all_reduce #6 of 4 f32 (sum); rank 3 "
            "has called nothing yet)");
  EXPECT_THAT(find_missing(6, std::span(notes).first(3)).ranks, IsEmpty());
}

TEST(CollectiveLog, WhoHasCalledWhatThisRankHasNotIsTold) {
  const auto notes = notes_of({with_calls(3), with_calls(1), with_calls(0), with_calls(2)});
  EXPECT_EQ(find_ahead(std::vector{0, 2, 3}, 1, notes),
            "rank 0 has called nccl all_reduce #2 of 4 f32 (sum); rank 3 has called nccl "
            "all_reduce #2 of 4 f32 (sum)");
  EXPECT_EQ(find_ahead(std::vector{1, 2}, 0, notes), "");
}

}  // namespace
}  // namespace ddprun
