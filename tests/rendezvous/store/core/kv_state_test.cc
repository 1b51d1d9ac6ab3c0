#include "rendezvous/store/core/kv_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <functional>
#include <set>

#include "base/rng.h"
#include "tests/support/store_bytes.h"

namespace ddprun {
namespace {

using namespace std::literals;
using testing::HasSubstr;
using testing_support::i64;
using testing_support::string_reply;
using testing_support::u8;

constexpr std::size_t kEntry = KvState::kEntryBytes;
const std::string kReady = u8(0);
const std::string kNothing;

// Store: a KvState whose clients are numbers. mail() returns replies to clients that did not ask
// just now.
class Store {
 public:
  explicit Store(const KvLimits& limits = {}) : state_(limits, "who I am") {}

  // Makes the request and returns the bytes that the asking client gets.
  std::string ask(std::uint64_t client, Command command, std::vector<std::string> strings = {},
                  std::int64_t number = 0) {
    Request request;
    request.command = command;
    request.strings.assign(strings.begin(), strings.end());
    request.number = number;
    KvState::Progress progress;
    std::optional<Refusal> refusal;
    do {
      Replies replies;
      refusal = state_.handle(StoreConnectionId(client), request, progress, replies);
      sort(replies);
      ++slices;
      if (between_slices) between_slices();
    } while (!refusal && !progress.done());
    last_refusal = refusal ? refusal->reason : "";
    last_kind = refusal ? std::optional(refusal->kind) : std::nullopt;
    if (!leaves_work) work();
    return mail(client);
  }

  // Does the work that was left over.
  void work() {
    while (state_.has_work()) {
      Replies replies;
      state_.work(replies);
      sort(replies);
      ++slices;
    }
  }

  // Takes the bytes that have arrived for a client that did not ask.
  std::string mail(std::uint64_t client) { return std::exchange(mail_[client], {}); }

  void set(const std::string& key, const std::string& value) {
    ask(99, Command::kSet, {key, value});
  }
  std::string get(const std::string& key) {
    const std::string reply = ask(99, Command::kGet, {key});
    return reply.substr(8);
  }
  void push(const std::string& key, const std::string& value) {
    ask(99, Command::kQueuePush, {key, value});
  }
  // Starts a wait, and expects that it is not answered yet.
  void park(std::uint64_t client, std::vector<std::string> keys) {
    EXPECT_EQ(ask(client, Command::kWait, std::move(keys)), kNothing);
    EXPECT_EQ(last_refusal, "");
  }
  void give_up(std::uint64_t client) { state_.give_up_wait(StoreConnectionId(client)); }
  void close(std::uint64_t client) {
    give_up(client);
    work();
  }
  const KvState& state() const { return state_; }

  std::string last_refusal;
  std::optional<Refusal::Kind> last_kind;
  int slices = 0;
  std::function<void()> between_slices;
  bool leaves_work = false;  // leaves it to a later request

 private:
  void sort(const Replies& replies) {
    for (std::size_t i = 0; i < replies.pieces(); ++i) {
      const Replies::Piece piece = replies.piece(i);
      mail_[piece.to.value] += piece.bytes;
    }
  }

  KvState state_;
  std::map<std::uint64_t, std::string> mail_;
};

// --- values ---

TEST(KvState, AnswersPingWithItsNumber) {
  Store store;
  std::string expected;
  put_u32(expected, 0xDEADBEEF);
  EXPECT_EQ(store.ask(1, Command::kPing, {}, 0xDEADBEEF), expected);
}

TEST(KvState, SetHasNoAnswerAndOverwrites) {
  Store store;
  EXPECT_EQ(store.ask(1, Command::kSet, {"k", "one"}), kNothing);
  EXPECT_EQ(store.ask(1, Command::kSet, {"k", "two"}), kNothing);
  EXPECT_EQ(store.ask(2, Command::kGet, {"k"}), string_reply("two"));
}

TEST(KvState, GetOfAMissingKeyIsEmpty) {
  Store store;
  EXPECT_EQ(store.ask(1, Command::kGet, {"k"}), string_reply(""));
}

TEST(KvState, KeysAndValuesMayBeEmptyAndHoldNul) {
  Store store;
  store.set("", "empty key");
  store.set("a\0b"s, "\0"s);
  store.set("v", "");
  EXPECT_EQ(store.get(""), "empty key");
  EXPECT_EQ(store.get("a\0b"s), "\0"s);
  EXPECT_EQ(store.get("a"), "");
  EXPECT_EQ(store.ask(1, Command::kCheck, {"", "a\0b"s, "v"}), kReady);
}

struct CompareSetCase {
  const char* name;
  std::optional<std::string> held;
  std::string expected, desired, answer;
  std::optional<std::string> held_after;
};

TEST(KvState, CompareSetFollowsPyTorchsTable) {
  const std::vector<CompareSetCase> cases{
      {"missing, nothing expected", {}, "", "new", "new", "new"},
      {"missing, something expected", {}, "old", "new", "old", {}},
      {"equal", "old", "old", "new", "new", "new"},
      {"different", "other", "old", "new", "other", "other"},
      {"held empty, nothing expected", "", "", "new", "new", "new"},
      {"held, nothing expected", "other", "", "new", "other", "other"},
      {"bytewise", "a\0b"s, "a\0c"s, "new", "a\0b"s, "a\0b"s},
      {"to empty", "old", "old", "", "", ""},
  };
  for (const CompareSetCase& one : cases) {
    Store store;
    if (one.held) store.set("k", *one.held);
    EXPECT_EQ(store.ask(1, Command::kCompareSet, {"k", one.expected, one.desired}),
              string_reply(one.answer))
        << one.name;
    EXPECT_EQ(store.state().key_count(), one.held_after ? 1u : 0u) << one.name;
    EXPECT_EQ(store.get("k"), one.held_after.value_or("")) << one.name;
  }
}

struct AddCase {
  const char* name;
  std::optional<std::string> held;
  std::int64_t delta;
  std::optional<std::int64_t> sum;
};

TEST(KvState, AddReadsTheLeadingIntegerAndWraps) {
  constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
  constexpr std::int64_t kMin = std::numeric_limits<std::int64_t>::min();
  const std::vector<AddCase> cases{
      {"missing", {}, 5, 5},
      {"missing, zero", {}, 0, 0},
      {"number", "7", 5, 12},
      {"negative", "-7", 5, -2},
      {"trailing text", "12abc", 1, 13},
      {"white space", " 7 ", 1, 8},
      {"all white space of C", "\t\n\v\f\r 7", 1, 8},
      {"plus", "+7", 1, 8},
      {"zeros in front", "007", 1, 8},
      {"hexadecimal is 0 and text", "0x10", 1, 1},
      {"fraction", "1.9", 1, 2},
      {"overflow", std::to_string(kMax), 1, kMin},
      {"underflow", std::to_string(kMin), -1, kMax},
      {"most negative delta", "-1", kMin, kMax},
      {"empty", "", 1, {}},
      {"text", "abc", 1, {}},
      {"sign alone", "-", 1, {}},
      {"two signs", "+-7", 1, {}},
      {"space after the sign", "- 7", 1, {}},
      {"white space alone", "  ", 1, {}},
      {"too large", "9223372036854775808", 1, {}},
      {"nul first",
       "\0"
       "7"s,
       1,
       {}},
  };
  for (const AddCase& one : cases) {
    Store store;
    if (one.held) store.set("k", *one.held);
    const std::string answer = store.ask(1, Command::kAdd, {"k"}, one.delta);
    if (one.sum) {
      EXPECT_EQ(answer, i64(*one.sum)) << one.name;
      EXPECT_EQ(store.get("k"), std::to_string(*one.sum)) << one.name;
    } else {
      EXPECT_EQ(answer, kNothing) << one.name;
      EXPECT_EQ(store.last_refusal, "ADD: the value of the key is not a number") << one.name;
      EXPECT_EQ(store.get("k"), *one.held) << one.name;
    }
  }
}

TEST(KvState, CheckNeedsEveryKey) {
  Store store;
  store.set("a", "");
  store.set("b", "");
  EXPECT_EQ(store.ask(1, Command::kCheck, {"a", "b"}), u8(0));
  EXPECT_EQ(store.ask(1, Command::kCheck, {"a", "c"}), u8(1));
  EXPECT_EQ(store.ask(1, Command::kCheck, {}), u8(0));
}

TEST(KvState, DeleteSaysWhetherTheKeyExisted) {
  Store store;
  store.set("k", "v");
  EXPECT_EQ(store.ask(1, Command::kDeleteKey, {"k"}), i64(1));
  EXPECT_EQ(store.ask(1, Command::kDeleteKey, {"k"}), i64(0));
  EXPECT_EQ(store.ask(1, Command::kCheck, {"k"}), u8(1));
}

TEST(KvState, AppendMakesAndGrows) {
  Store store;
  EXPECT_EQ(store.ask(1, Command::kAppend, {"k", "ab"}), kNothing);
  EXPECT_EQ(store.ask(1, Command::kAppend, {"k", "cd"}), kNothing);
  EXPECT_EQ(store.get("k"), "abcd");
}

TEST(KvState, MultiGetAnswersInTheOrderOfTheKeys) {
  Store store;
  store.set("a", "1");
  store.set("b", "2");
  EXPECT_EQ(store.ask(1, Command::kMultiGet, {"b", "missing", "a", "b"}),
            string_reply("2") + string_reply("") + string_reply("1") + string_reply("2"));
  EXPECT_EQ(store.ask(1, Command::kMultiGet, {}), kNothing);
}

TEST(KvState, MultiSetStoresInOrder) {
  Store store;
  EXPECT_EQ(store.ask(1, Command::kMultiSet, {"a", "1", "b", "2", "a", "3"}), kNothing);
  EXPECT_EQ(store.get("a"), "3");
  EXPECT_EQ(store.get("b"), "2");
}

TEST(KvState, CountsAndListsKeysButNoQueues) {
  Store store;
  store.set("init/", "2");
  store.set("/b", "");
  store.set("/a", "");
  store.push("/q", "item");
  EXPECT_EQ(store.ask(1, Command::kGetNumKeys), i64(3));
  EXPECT_EQ(store.ask(1, Command::kListKeys),
            i64(3) + string_reply("/a") + string_reply("/b") + string_reply("init/"));
  store.ask(1, Command::kDeleteKey, {"/a"});
  EXPECT_EQ(store.ask(1, Command::kGetNumKeys), i64(2));
}

// --- queues ---

TEST(KvState, QueuesAreFirstInFirstOut) {
  Store store;
  store.push("q", "a");
  store.push("q", "");
  EXPECT_EQ(store.ask(1, Command::kQueueLen, {"q"}), i64(2));
  EXPECT_EQ(store.ask(1, Command::kQueuePop, {"q"}), i64(2) + string_reply("a"));
  EXPECT_EQ(store.ask(1, Command::kQueuePop, {"q"}), i64(1) + string_reply(""));
  EXPECT_EQ(store.ask(1, Command::kQueuePop, {"q"}), i64(0));
  EXPECT_EQ(store.ask(1, Command::kQueueLen, {"q"}), i64(0));
}

TEST(KvState, QueuesAndValuesOfOneNameAreApart) {
  Store store;
  store.push("x", "item");
  EXPECT_EQ(store.ask(1, Command::kGet, {"x"}), string_reply(""));
  EXPECT_EQ(store.ask(1, Command::kDeleteKey, {"x"}), i64(0));
  store.set("x", "value");
  EXPECT_EQ(store.get("x"), "value");
  EXPECT_EQ(store.ask(1, Command::kDeleteKey, {"x"}), i64(1));
  EXPECT_EQ(store.ask(1, Command::kQueueLen, {"x"}), i64(1));
  store.set("y", "value");
  EXPECT_EQ(store.ask(1, Command::kQueuePop, {"y"}), i64(0));
}

TEST(KvState, CheckAndWaitSeeAQueueWhileItHoldsSomething) {
  Store store;
  EXPECT_EQ(store.ask(1, Command::kCheck, {"q"}), u8(1));
  store.push("q", "item");
  EXPECT_EQ(store.ask(1, Command::kCheck, {"q"}), u8(0));
  EXPECT_EQ(store.ask(1, Command::kWait, {"q"}), kReady);
  store.ask(1, Command::kQueuePop, {"q"});
  EXPECT_EQ(store.ask(1, Command::kCheck, {"q"}), u8(1));
}

TEST(KvState, WakesOnlyTheOldestWaiterOnQueuePush) {
  Store store;
  store.park(1, {"q"});
  store.park(2, {"q"});
  store.push("q", "a");
  EXPECT_EQ(store.mail(1), kReady);
  EXPECT_EQ(store.mail(2), kNothing);
  store.push("q", "b");
  EXPECT_EQ(store.mail(1), kNothing);
  EXPECT_EQ(store.mail(2), kReady);
}

TEST(KvState, QueuePushSkipsWhoCancelledOrLeft) {
  Store store;
  for (const std::uint64_t client : {1, 2, 3, 4}) store.park(client, {"q"});
  store.ask(1, Command::kCancelWait);
  store.close(2);
  store.push("q", "a");
  EXPECT_EQ(store.mail(1), kNothing);
  EXPECT_EQ(store.mail(2), kNothing);
  EXPECT_EQ(store.mail(3), kReady);
  EXPECT_EQ(store.mail(4), kNothing);
}

TEST(KvState, SettingAKeyWakesEveryWaiterOfAQueueOfThatName) {
  Store store;
  store.park(1, {"q"});
  store.park(2, {"q"});
  store.set("q", "v");
  EXPECT_EQ(store.mail(1), kReady);
  EXPECT_EQ(store.mail(2), kReady);
}

// PyTorch's libuv server counts such a queue as missing and never answers.
TEST(KvState, WaitOnAFilledQueueAndAMissingKeyIsAnsweredWhenTheKeyComes) {
  Store store;
  store.push("q", "item");
  store.park(1, {"q", "k"});
  store.set("k", "v");
  EXPECT_EQ(store.mail(1), kReady);
}

// PyTorch's libuv server keeps a stale entry here and answers the second wait.
TEST(KvState, WhoWasWokenByAPushIsNotWokenByTheNextOneForAnotherWait) {
  Store store;
  store.park(1, {"q"});
  store.push("q", "a");
  EXPECT_EQ(store.mail(1), kReady);
  store.park(1, {"other"});
  store.push("q", "b");
  EXPECT_EQ(store.mail(1), kNothing);
}

// --- waiting ---

TEST(KvState, WaitForNothingOrForWhatIsThereIsAnsweredAtOnce) {
  Store store;
  EXPECT_EQ(store.ask(1, Command::kWait, {}), kReady);
  store.set("a", "");
  EXPECT_EQ(store.ask(1, Command::kWait, {"a", "a"}), kReady);
  EXPECT_EQ(store.state().parked_count(), 0u);
}

struct Waker {
  const char* name;
  Command command;
  std::vector<std::string> strings;
  std::int64_t number;
  bool wakes;
};

TEST(KvState, WhateverCreatesTheKeyWakesItsWaiters) {
  const std::vector<Waker> wakers{
      {"SET", Command::kSet, {"k", ""}, 0, true},
      {"APPEND", Command::kAppend, {"k", ""}, 0, true},
      {"MULTI_SET", Command::kMultiSet, {"x", "", "k", ""}, 0, true},
      {"ADD", Command::kAdd, {"k"}, 1, true},
      {"ADD 0", Command::kAdd, {"k"}, 0, true},
      {"COMPARE_SET that stores", Command::kCompareSet, {"k", "", "new"}, 0, true},
      {"QUEUE_PUSH", Command::kQueuePush, {"k", ""}, 0, true},
      {"BARRIER", Command::kBarrier, {"k"}, 1, true},
      {"COMPARE_SET that does not", Command::kCompareSet, {"k", "old", "new"}, 0, false},
      {"DELETE_KEY", Command::kDeleteKey, {"k"}, 0, false},
      {"SET of another key", Command::kSet, {"k2", ""}, 0, false},
      {"GET", Command::kGet, {"k"}, 0, false},
  };
  for (const Waker& waker : wakers) {
    Store store;
    store.park(1, {"k"});
    store.park(2, {"k"});
    store.ask(3, waker.command, waker.strings, waker.number);
    const bool only_one = waker.command == Command::kQueuePush;
    EXPECT_EQ(store.mail(1), waker.wakes ? kReady : kNothing) << waker.name;
    EXPECT_EQ(store.mail(2), waker.wakes && !only_one ? kReady : kNothing) << waker.name;
  }
}

TEST(KvState, WaitNeedsAllItsKeys) {
  Store store;
  store.set("a", "");
  store.park(1, {"a", "b", "c"});
  store.set("b", "");
  EXPECT_EQ(store.mail(1), kNothing);
  store.set("c", "");
  EXPECT_EQ(store.mail(1), kReady);
  EXPECT_EQ(store.state().parked_count(), 0u);
}

TEST(KvState, AKeyNamedTwiceInOneWaitIsOneKey) {
  Store store;
  store.park(1, {"k", "k", "other", "k"});
  store.set("k", "");
  EXPECT_EQ(store.mail(1), kNothing);
  store.set("other", "");
  EXPECT_EQ(store.mail(1), kReady);
}

TEST(KvState, AKeyThatCameAndWentHasCounted) {
  Store store;
  store.park(1, {"a", "b"});
  store.set("a", "");
  store.ask(2, Command::kDeleteKey, {"a"});
  store.set("b", "");
  EXPECT_EQ(store.mail(1), kReady);
}

TEST(KvState, OneSetWakesThousands) {
  Store store;
  for (std::uint64_t client = 1000; client < 11000; ++client) store.park(client, {"k", "never"});
  for (std::uint64_t client = 1000; client < 11000; client += 2) store.close(client);
  store.set("k", "");
  store.set("never", "");
  for (std::uint64_t client = 1000; client < 11000; ++client) {
    EXPECT_EQ(store.mail(client), client % 2 ? kReady : kNothing);
  }
}

TEST(KvState, ARequestOfAWaitingConnectionIsServedAndTheWaitStays) {
  Store store;
  store.park(1, {"k"});
  EXPECT_EQ(store.ask(1, Command::kAdd, {"n"}, 3), i64(3));
  EXPECT_EQ(store.ask(1, Command::kWait, {"n"}), kReady);
  store.set("k", "");
  EXPECT_EQ(store.mail(1), kReady);
}

TEST(KvState, AConnectionMaySatisfyItsOwnWait) {
  Store store;
  store.park(1, {"k"});
  EXPECT_EQ(store.ask(1, Command::kSet, {"k", ""}), kReady);
}

TEST(KvState, ASecondWaitThatMustWaitTooClosesTheConnection) {
  Store store;
  store.park(1, {"a"});
  EXPECT_EQ(store.ask(1, Command::kWait, {"b"}), kNothing);
  EXPECT_EQ(store.last_refusal, "WAIT: this connection is already waiting");
  EXPECT_EQ(store.ask(1, Command::kBarrier, {"c"}, 2), kNothing);
  EXPECT_EQ(store.last_refusal, "BARRIER: this connection is already waiting");
  EXPECT_EQ(store.state().key_count(), 0u);
}

TEST(KvState, CancelWaitIsAlwaysAnsweredAndEndsTheWait) {
  Store store;
  EXPECT_EQ(store.ask(1, Command::kCancelWait), u8(1));
  store.park(1, {"a", "b"});
  EXPECT_EQ(store.ask(1, Command::kCancelWait), u8(1));
  store.set("a", "");
  store.set("b", "");
  EXPECT_EQ(store.mail(1), kNothing);
  store.park(1, {"c"});
  store.set("c", "");
  EXPECT_EQ(store.mail(1), kReady);
}

TEST(KvState, AWakeThatCrossesTheCancellingComesFirst) {
  Store store;
  store.park(1, {"k"});
  store.set("k", "");
  EXPECT_EQ(store.mail(1) + store.ask(1, Command::kCancelWait), "\x00\x01"s);
}

TEST(KvState, AClosedConnectionGetsNothingAndLeavesItsKeys) {
  Store store;
  store.ask(1, Command::kSet, {"mine", "v"});
  store.park(1, {"k"});
  store.close(1);
  store.close(1);
  store.set("k", "");
  EXPECT_EQ(store.mail(1), kNothing);
  EXPECT_EQ(store.get("mine"), "v");
  EXPECT_EQ(store.state().parked_count(), 0u);
}

// --- fetching ---

std::string bytes_fetched(std::string_view value) { return kReady + string_reply(value); }
const std::string kMissing = u8(1);
const std::string kTooLong = u8(2);

TEST(KvState, FetchAnswersAtOnceWithWhatIsThere) {
  Store store;
  store.set("k", "v");
  EXPECT_EQ(store.ask(1, Command::kFetch, {"k"}), bytes_fetched("v"));
  EXPECT_EQ(store.state().parked_count(), 0u);
}

TEST(KvState, WhateverCreatesTheKeyAnswersAFetchOfItWithItsValue) {
  struct Maker {
    Command command;
    std::vector<std::string> strings;
    std::int64_t number;
    std::string value;
  };
  const std::vector<Maker> makers{
      {Command::kSet, {"k", "v"}, 0, "v"},
      {Command::kAppend, {"k", "v"}, 0, "v"},
      {Command::kMultiSet, {"x", "", "k", "v", "k", "w"}, 0, "v"},
      {Command::kAdd, {"k"}, 7, "7"},
      {Command::kCompareSet, {"k", "", "v"}, 0, "v"},
      {Command::kQueuePush, {"k", "item"}, 0, ""},  // as GET of a queue
  };
  for (const Maker& maker : makers) {
    Store store;
    EXPECT_EQ(store.ask(1, Command::kFetch, {"k"}), kNothing);
    EXPECT_EQ(store.state().parked_count(), 1u);
    store.ask(2, maker.command, maker.strings, maker.number);
    EXPECT_EQ(store.mail(1), bytes_fetched(maker.value)) << rule_of(maker.command).name;
    EXPECT_EQ(store.state().parked_count(), 0u);
  }
}

TEST(KvState, AFetchThatIsCancelledOrClosedIsForgotten) {
  Store store;
  EXPECT_EQ(store.ask(1, Command::kFetch, {"k"}), kNothing);
  EXPECT_EQ(store.ask(1, Command::kCancelWait), u8(1));
  EXPECT_EQ(store.ask(2, Command::kFetch, {"k"}), kNothing);
  store.close(2);
  EXPECT_EQ(store.state().held_bytes(), 0u);
  store.set("k", "v");
  EXPECT_EQ(store.mail(1) + store.mail(2), kNothing);
}

TEST(KvState, AFetchCountsAsTheOneWaitOfItsConnection) {
  Store store;
  store.park(1, {"a"});
  EXPECT_EQ(store.ask(1, Command::kFetch, {"b"}), kNothing);
  EXPECT_EQ(store.last_refusal, "FETCH: this connection is already waiting");
  EXPECT_EQ(store.ask(2, Command::kFetch, {"a"}), kNothing);
  EXPECT_EQ(store.ask(2, Command::kWait, {"b"}), kNothing);
  EXPECT_EQ(store.last_refusal, "WAIT: this connection is already waiting");
}

TEST(KvState, AFetchIsHeldAsAWaitIs) {
  Store store({.held_bytes = kEntry + 1});
  EXPECT_EQ(store.ask(1, Command::kFetch, {"k"}), kNothing);
  EXPECT_EQ(store.state().held_bytes(), kEntry + 1);
  EXPECT_EQ(store.ask(2, Command::kFetch, {"k"}), kNothing);
  EXPECT_EQ(store.last_kind, Refusal::kHeldLimit);
}

// Thousands of clients wait. So the key is deleted before the last of them get their answer.
TEST(KvState, AFetchWhoseKeyHasGoneBeforeItIsToldWaitsForTheNext) {
  constexpr std::uint64_t kFirst = 1000, kLast = 3000;
  Store store;
  for (std::uint64_t client = kFirst; client < kLast; ++client) {
    EXPECT_EQ(store.ask(client, Command::kFetch, {"k"}), kNothing);
  }
  const std::size_t held = store.state().held_bytes();
  bool is_deleted = false;
  store.between_slices = [&] {
    if (std::exchange(is_deleted, true)) return;
    store.ask(1, Command::kDeleteKey, {"k"});
  };
  store.set("k", "first");
  store.between_slices = nullptr;
  std::size_t answered = 0;
  for (std::uint64_t client = kFirst; client < kLast; ++client) {
    const std::string got = store.mail(client);
    if (got.empty()) continue;
    EXPECT_EQ(got, bytes_fetched("first"));
    ++answered;
  }
  ASSERT_GT(answered, 0u);
  ASSERT_LT(answered, kLast - kFirst);
  EXPECT_EQ(store.state().parked_count(), kLast - kFirst - answered);
  EXPECT_EQ(store.state().held_bytes(), held - answered * (kEntry + 1));
  store.set("k", "second");
  for (std::uint64_t client = kFirst; client < kLast; ++client) {
    const std::string got = store.mail(client);
    EXPECT_TRUE(got.empty() || got == bytes_fetched("second"));
  }
  EXPECT_EQ(store.state().parked_count(), 0u);
}

TEST(KvState, AFetchOfWhatIsTooLongIsToldSoAndGoesOn) {
  Store store({.reply_bytes = 9 + 3});
  store.set("k", "four");
  EXPECT_EQ(store.ask(1, Command::kFetch, {"k"}), kTooLong);
  EXPECT_EQ(store.last_refusal, "");
  EXPECT_EQ(store.ask(1, Command::kFetch, {"later"}), kNothing);
  store.set("later", "four");
  EXPECT_EQ(store.mail(1), kTooLong);
  store.set("k", "bit");
  EXPECT_EQ(store.ask(1, Command::kFetch, {"k"}), bytes_fetched("bit"));
}

TEST(KvState, TryFetchAnswersWithAllValuesOrWithNone) {
  Store store;
  store.set("a", "1");
  EXPECT_EQ(store.ask(1, Command::kTryFetch, {"a", "b"}), kMissing);
  EXPECT_EQ(store.state().parked_count(), 0u);
  store.set("b", "");
  EXPECT_EQ(store.ask(1, Command::kTryFetch, {"b", "a", "b"}),
            bytes_fetched("") + string_reply("1") + string_reply(""));
  EXPECT_EQ(store.ask(1, Command::kTryFetch), kReady);
  store.push("q", "item");
  EXPECT_EQ(store.ask(1, Command::kTryFetch, {"q"}), bytes_fetched("")) << "as MULTI_GET of it";
}

TEST(KvState, ALongTryFetchIsCutIntoSlicesAndGoesOnWhenKeysAreDeletedMeanwhile) {
  Store store;
  std::vector<std::string> keys;
  std::string expected = kReady;
  for (int i = 0; i < 1000; ++i) {
    keys.push_back(std::to_string(i));
    store.set(keys.back(), "v");
    expected += string_reply(i < 999 ? "v" : "");
  }
  store.slices = 0;
  int slice = 0;
  // This is after the first pass, which has found that all keys exist.
  store.between_slices = [&] {
    if (++slice == 9) store.ask(2, Command::kDeleteKey, {"999"});
  };
  EXPECT_EQ(store.ask(1, Command::kTryFetch, keys), expected);
  EXPECT_GE(store.slices, 2 * 1000 / 128);
  EXPECT_EQ(store.ask(1, Command::kTryFetch, keys), kMissing);
}

TEST(KvState, SaysWhichStoreItIsAndLetsNobodyChangeThat) {
  Store store;
  const std::string key(kIdentityKey), nobody(kNoIdentity);
  const auto identity = [&] { return store.ask(1, Command::kCompareSet, {key, nobody, nobody}); };
  EXPECT_EQ(identity(), string_reply("who I am"));
  EXPECT_EQ(store.ask(1, Command::kCompareSet, {key, "who I am", "other"}),
            string_reply("who I am"));
  EXPECT_EQ(store.ask(1, Command::kDeleteKey, {key}), i64(0));
  EXPECT_EQ(store.state().key_count(), 0u);
  EXPECT_EQ(store.ask(1, Command::kCheck, {key}), u8(1));
  store.set(key, "other");
  EXPECT_EQ(identity(), string_reply("who I am"));
}

// --- barriers ---

TEST(KvState, TheLastArrivalOpensTheBarrierForAll) {
  Store store;
  EXPECT_EQ(store.ask(1, Command::kBarrier, {"b"}, 3), kNothing);
  EXPECT_EQ(store.ask(2, Command::kBarrier, {"b"}, 3), kNothing);
  EXPECT_EQ(store.ask(3, Command::kBarrier, {"b"}, 3), kReady);
  EXPECT_EQ(store.mail(1), kReady);
  EXPECT_EQ(store.mail(2), kReady);
  EXPECT_EQ(store.get("b"), "3");
  EXPECT_EQ(store.ask(1, Command::kBarrier, {"b"}, 3), kReady) << "a used key opens at once";
  EXPECT_EQ(store.state().parked_count(), 0u);
}

TEST(KvState, ABarrierOfOneOrLessOpensAtOnce) {
  Store store;
  EXPECT_EQ(store.ask(1, Command::kBarrier, {"b"}, 1), kReady);
  EXPECT_EQ(store.ask(1, Command::kBarrier, {"c"}, 0), kReady);
  EXPECT_EQ(store.ask(1, Command::kBarrier, {"d"}, -5), kReady);
}

TEST(KvState, BarriersOfDifferentSizesUnderOneKeyOpenEachAtItsOwnCount) {
  Store store;
  EXPECT_EQ(store.ask(1, Command::kBarrier, {"b"}, 4), kNothing);
  EXPECT_EQ(store.ask(2, Command::kBarrier, {"b"}, 3), kNothing);
  EXPECT_EQ(store.ask(3, Command::kBarrier, {"b"}, 3), kReady);
  EXPECT_EQ(store.mail(2), kReady);
  EXPECT_EQ(store.mail(1), kNothing);
  EXPECT_EQ(store.ask(5, Command::kBarrier, {"b"}, 4), kReady);
  EXPECT_EQ(store.mail(1), kReady);
}

TEST(KvState, ABarrierThatIsCancelledHasStillArrived) {
  Store store;
  EXPECT_EQ(store.ask(1, Command::kBarrier, {"b"}, 2), kNothing);
  EXPECT_EQ(store.ask(1, Command::kCancelWait), u8(1));
  EXPECT_EQ(store.ask(2, Command::kBarrier, {"b"}, 2), kReady);
  EXPECT_EQ(store.mail(1), kNothing);
}

TEST(KvState, ABarrierOnAKeyThatHoldsNoNumberClosesTheConnection) {
  Store store;
  store.set("b", "text");
  EXPECT_EQ(store.ask(1, Command::kBarrier, {"b"}, 1), kNothing);
  EXPECT_EQ(store.last_refusal, "BARRIER: the value of the key is not a number");
}

// --- long replies ---

TEST(KvState, RefusesARequestWhoseReplyWouldBeTooLong) {
  Store store({.reply_bytes = 100});
  store.set("a", std::string(92, 'v'));
  EXPECT_EQ(store.ask(1, Command::kGet, {"a"}).size(), 100u);
  store.ask(1, Command::kAppend, {"a", "v"});
  EXPECT_EQ(store.ask(1, Command::kGet, {"a"}), kNothing);
  EXPECT_EQ(store.last_refusal, "GET: a reply of 101 bytes (at most 100)");
  EXPECT_EQ(store.ask(1, Command::kCompareSet, {"a", "", ""}), kNothing);
  EXPECT_THAT(store.last_refusal, HasSubstr("COMPARE_SET: a reply of 101"));

  EXPECT_EQ(store.ask(1, Command::kMultiGet, {"a"}), kNothing);
  EXPECT_THAT(store.last_refusal, HasSubstr("MULTI_GET: a reply of 101"));
  store.set("b", std::string(92, 'v'));
  EXPECT_EQ(store.ask(1, Command::kMultiGet, {"b", "b", "b"}).size(), 300u) << "each for itself";

  store.set(std::string(100, 'k'), "");
  EXPECT_EQ(store.ask(1, Command::kListKeys), kNothing);
  EXPECT_THAT(store.last_refusal, HasSubstr("LIST_KEYS: a reply of"));
}

TEST(KvState, ACompareSetWhoseReplyWouldBeTooLongStoresNothing) {
  Store store({.reply_bytes = 20});
  EXPECT_EQ(store.ask(1, Command::kCompareSet, {"k", "", "thirteen byte"}), kNothing);
  EXPECT_EQ(store.last_kind, Refusal::kReplyLimit);
  EXPECT_EQ(store.state().key_count(), 0u);
}

// --- slices ---

std::vector<std::string> many_keys(const std::string& name, std::size_t count) {
  std::vector<std::string> keys;
  for (std::size_t i = 0; i < count; ++i) keys.push_back(name + std::to_string(i));
  return keys;
}

std::vector<std::string> pairs_of(const std::vector<std::string>& keys) {
  std::vector<std::string> pairs;
  for (const std::string& key : keys) {
    pairs.push_back(key);
    pairs.push_back("value of " + key);
  }
  return pairs;
}

constexpr std::size_t kMany = 10 * KvState::kSliceCost;

TEST(KvState, ARequestOfManyKeysIsCutIntoSlicesAndAnsweredAsAWhole) {
  Store store;
  std::vector<std::string> keys = many_keys("k", kMany);
  const auto slices_of = [&](Command command, const std::vector<std::string>& strings,
                             const std::string& answer) {
    const int before = store.slices;
    EXPECT_EQ(store.ask(1, command, strings), answer) << rule_of(command).name;
    EXPECT_GE(store.slices - before, 10) << rule_of(command).name;
    EXPECT_LE(store.slices - before, 40) << rule_of(command).name;
  };
  slices_of(Command::kWait, keys, kNothing);
  slices_of(Command::kMultiSet, pairs_of(keys), kReady);
  slices_of(Command::kWait, keys, kReady);
  slices_of(Command::kCheck, keys, kReady);
  std::string values;
  for (const std::string& key : keys) values += string_reply("value of " + key);
  slices_of(Command::kMultiGet, keys, values);
  std::sort(keys.begin(), keys.end());
  std::string list = i64(static_cast<std::int64_t>(kMany));
  for (const std::string& key : keys) list += string_reply(key);
  slices_of(Command::kListKeys, {}, list);
  EXPECT_EQ(store.state().parked_count(), 0u);
}

TEST(KvState, ShortValuesShareASliceByTheirBytes) {
  Store store;
  const std::string half(KvState::kSliceCost * KvState::kBytesPerStep / 2, 'v');
  store.ask(1, Command::kMultiSet, {"a", half, "b", half, "c", half, "d", half});
  EXPECT_EQ(store.slices, 2);
  EXPECT_EQ(store.ask(1, Command::kMultiGet, {"a", "b", "c", "d"}).size(), 4 * (8 + half.size()));
  EXPECT_EQ(store.slices, 4);
}

constexpr std::size_t kLongSlices = 10;

std::string long_value(char letter) {
  std::string value(kLongSlices * Value::kLongBytes + 1, letter);
  value.back() = '.';
  return value;
}

TEST(KvState, ALongValueIsCopiedInSlicesAndThereWhenItIsWhole) {
  const std::string value = long_value('v');
  for (const auto& [command, strings] : std::vector<std::pair<Command, std::vector<std::string>>>{
           {Command::kSet, {"k", value}}, {Command::kMultiSet, {"k", value}}}) {
    Store store;
    int seen_without = 0;
    store.between_slices = [&] {
      const auto between = std::exchange(store.between_slices, nullptr);
      if (store.ask(2, Command::kCheck, {"k"}) == u8(1)) {
        ++seen_without;
        EXPECT_GE(store.state().held_bytes(), value.size()) << "its room is taken from the start";
        store.between_slices = between;
      }
    };
    store.ask(1, command, strings);
    EXPECT_GE(seen_without, static_cast<int>(kLongSlices) - 1) << rule_of(command).name;
    EXPECT_EQ(store.state().held_bytes(), 1 + value.size() + kEntry) << rule_of(command).name;
    EXPECT_EQ(store.get("k"), value) << rule_of(command).name;
  }
}

TEST(KvState, AReplyGoesOnWithTheLongValueItHasBegun) {
  const std::string value = long_value('v');
  const std::vector<std::pair<Command, std::string>> ways{
      {Command::kGet, string_reply(value)},
      {Command::kMultiGet, string_reply(value)},
      {Command::kFetch, u8(to_u8(Fetched::kHere)) + string_reply(value)},
      {Command::kTryFetch, u8(to_u8(Fetched::kHere)) + string_reply(value)}};
  const std::vector<std::pair<Command, std::vector<std::string>>> changes{
      {Command::kSet, {"k", "short"}},
      {Command::kSet, {"k", long_value('w')}},
      {Command::kAppend, {"k", "more"}},
      {Command::kDeleteKey, {"k"}}};
  for (const auto& [command, reply] : ways) {
    for (const auto& [change, strings] : changes) {
      SCOPED_TRACE(std::string(rule_of(command).name) + " and " +
                   std::string(rule_of(change).name));
      Store store;
      store.set("k", value);
      const int before = store.slices;
      store.between_slices = [&store, change = change, &strings = strings] {
        const auto running = std::exchange(store.between_slices, nullptr);
        store.ask(2, change, strings);
      };
      EXPECT_EQ(store.ask(1, command, {"k"}), reply);
      EXPECT_GE(store.slices - before, static_cast<int>(kLongSlices));
    }
  }
}

TEST(KvState, WhatIsAppendedToALongValueIsThere) {
  Store store;
  store.set("k", long_value('v'));
  store.ask(1, Command::kAppend, {"k", "more"});
  EXPECT_EQ(store.get("k"), long_value('v') + "more");
  store.set("short", "s");
  store.ask(1, Command::kAppend, {"short", long_value('v')});
  EXPECT_EQ(store.get("short"), "s" + long_value('v'));
}

TEST(KvState, ALongValueMayReplaceOneThoughBothHaveNoRoom) {
  const std::string value = long_value('v');
  Store store({.held_bytes = value.size() + 1000});
  store.set("k", value);
  store.set("k", long_value('w'));
  EXPECT_EQ(store.last_refusal, "");
  EXPECT_EQ(store.get("k"), long_value('w'));
  store.set("other", value);
  EXPECT_THAT(store.last_refusal, HasSubstr("at most"));
}

TEST(KvState, AKeyCountsWhetherItComesBeforeOrAfterAWaitHasLookedAtIt) {
  const std::vector<std::string> keys = many_keys("k", kMany);
  for (const bool in_order : {true, false}) {
    Store store;
    std::size_t next = 0;
    // Keys at the front have already been checked by the wait, keys at the back have not.
    store.between_slices = [&] {
      const auto between = std::exchange(store.between_slices, nullptr);
      for (int i = 0; i < 100 && next < kMany; ++i, ++next) {
        store.set(keys[in_order ? next : kMany - 1 - next], "");
        store.ask(99, Command::kDeleteKey, {keys[in_order ? next : kMany - 1 - next]});
        store.set(keys[in_order ? next : kMany - 1 - next], "");
      }
      store.between_slices = between;
    };
    std::string answer = store.ask(1, Command::kWait, keys);
    store.between_slices = nullptr;
    for (; next < kMany; ++next) {
      EXPECT_EQ(answer, kNothing);
      store.set(keys[in_order ? next : kMany - 1 - next], "");
      answer += store.mail(1);
    }
    EXPECT_EQ(answer, kReady);
    EXPECT_EQ(store.state().parked_count(), 0u);
  }
}

// The second entry of the key must not count as another wait, even if another client's wait came
// in between.
TEST(KvState, AKeyNamedTwiceFarApartIsOneKeyForAQueue) {
  Store store;
  std::vector<std::string> keys = many_keys("there", kMany);
  store.ask(99, Command::kMultiSet, pairs_of(keys));
  keys.front() = keys.back() = "q";
  store.between_slices = [&] {
    store.between_slices = nullptr;
    store.park(2, {"q"});
  };
  store.park(1, keys);
  store.push("q", "item");
  EXPECT_EQ(store.mail(1), kReady) << "it has waited longest";
  EXPECT_EQ(store.mail(2), kNothing);
}

TEST(KvState, AMultiSetIsAppliedOnceAndWholeWhateverOthersDoMeanwhile) {
  const std::vector<std::string> keys = many_keys("k", kMany);
  std::size_t room = kMany * kEntry + 1000;
  for (const std::string& text : pairs_of(keys)) room += text.size();
  Store store({.held_bytes = room});
  int seen_in_part = 0;
  store.between_slices = [&] {
    const auto between = std::exchange(store.between_slices, nullptr);
    seen_in_part += store.state().key_count() < kMany;
    EXPECT_GE(store.state().held_bytes(), room - 1000) << "its room is taken from the beginning";
    store.ask(99, Command::kSet, {"other", std::string(2000, 'v')});
    EXPECT_EQ(store.last_kind, Refusal::kHeldLimit);
    store.ask(99, Command::kAdd, {"counter"}, 1);
    store.ask(99, Command::kDeleteKey, {"counter"});
    store.between_slices = between;
  };
  store.ask(1, Command::kMultiSet, pairs_of(keys));
  store.between_slices = nullptr;
  EXPECT_GT(seen_in_part, 5);
  EXPECT_EQ(store.state().key_count(), kMany);
  EXPECT_EQ(store.state().held_bytes(), room - 1000);
  for (const std::string& key : keys) EXPECT_EQ(store.get(key), "value of " + key);
}

TEST(KvState, OnlyWhatHasBegunToBeStoredMustGoOnWithoutItsConnection) {
  const std::vector<std::string> keys = many_keys("k", kMany), pairs = pairs_of(keys);
  KvState state;
  Replies replies;
  const std::vector<std::string> key_and_long_value{"k", long_value('v')};
  for (const Command command : {Command::kMultiSet, Command::kSet, Command::kWait, Command::kCheck,
                                Command::kMultiGet, Command::kListKeys}) {
    const bool stores = command == Command::kMultiSet || command == Command::kSet;
    const std::vector<std::string>& strings = command == Command::kSet ? key_and_long_value
                                              : stores                 ? pairs
                                                                       : keys;
    Request request;
    request.command = command;
    if (command != Command::kListKeys) request.strings.assign(strings.begin(), strings.end());
    KvState::Progress progress;
    EXPECT_FALSE(progress.must_go_on());
    EXPECT_FALSE(state.handle(StoreConnectionId(1), request, progress, replies));
    EXPECT_FALSE(progress.done());
    EXPECT_EQ(progress.must_go_on(), stores);
    while (!progress.done()) {
      EXPECT_FALSE(state.handle(StoreConnectionId(1), request, progress, replies));
    }
    EXPECT_FALSE(progress.must_go_on());
  }
}

TEST(KvState, AListOfKeysThatComeAndGoHasEveryLastingKeyOnce) {
  Store store;
  const std::vector<std::string> lasting = many_keys("lasting", kMany);
  store.ask(99, Command::kMultiSet, pairs_of(lasting));
  Rng rng(1);
  store.between_slices = [&] {
    const auto between = std::exchange(store.between_slices, nullptr);
    for (int i = 0; i < 20; ++i) {
      const std::string key = "lasting" + std::to_string(rng.below(kMany)) + "x";
      if (rng.chance(0.5)) {
        store.set(key, "");
      } else {
        store.ask(99, Command::kDeleteKey, {key});
      }
    }
    store.between_slices = between;
  };
  ReplyReader reader;
  reader.feed(store.ask(1, Command::kListKeys));
  const std::optional<std::int64_t> count = reader.take_i64();
  ASSERT_TRUE(count);
  std::set<std::string> listed;
  for (std::int64_t i = 0; i < *count; ++i) {
    const std::optional<std::string> key = reader.take_string();
    ASSERT_TRUE(key);
    EXPECT_TRUE(listed.insert(*key).second) << *key;
  }
  EXPECT_TRUE(reader.empty());
  for (const std::string& key : lasting) EXPECT_TRUE(listed.contains(key)) << key;
}

TEST(KvState, AWaitThatWasGivenUpCountsNoMoreWhileItsLinksAreStillBeingCut) {
  Store store;
  std::vector<std::string> keys = many_keys("k", kMany);
  store.park(1, keys);
  store.park(2, {keys.front()});
  store.give_up(1);
  EXPECT_TRUE(store.state().has_work());
  EXPECT_EQ(store.state().parked_count(), 1u);
  store.push(keys.front(), "item");
  EXPECT_EQ(store.mail(2), kReady) << "the one before it has left";
  store.work();
  EXPECT_FALSE(store.state().has_work());
  store.ask(99, Command::kQueuePop, {keys.front()});
  EXPECT_EQ(store.state().held_bytes(), 0u);
  store.park(1, keys);
  store.close(1);
  EXPECT_EQ(store.state().held_bytes(), 0u);
}

TEST(KvState, TheWaitersOfOneKeyAreToldInSlices) {
  Store store;
  for (std::uint64_t client = 1000; client < 1000 + kMany; ++client) store.park(client, {"k"});
  std::uint64_t answered_at_once = 0;
  store.between_slices = [&] {
    store.between_slices = nullptr;
    answered_at_once = kMany - store.state().parked_count();
    // A client that cancels now gets no answer. For the others it does not matter what happens
    // to the key.
    EXPECT_EQ(store.ask(1000 + kMany - 1, Command::kCancelWait), u8(1));
    store.ask(99, Command::kDeleteKey, {"k"});
    store.park(1, {"k"});
  };
  store.set("k", "");
  EXPECT_GT(answered_at_once, 10u);
  EXPECT_LT(answered_at_once, KvState::kSliceCost);
  for (std::uint64_t client = 1000; client < 1000 + kMany - 1; ++client) {
    EXPECT_EQ(store.mail(client), kReady);
  }
  EXPECT_EQ(store.mail(1000 + kMany - 1), kNothing);
  EXPECT_EQ(store.mail(1), kNothing);
  EXPECT_EQ(store.state().parked_count(), 1u);
}

TEST(KvState, TheWaitersOfOneBarrierAreToldInSlices) {
  Store store;
  for (std::uint64_t client = 0; client < kMany; ++client) {
    EXPECT_EQ(store.ask(1000 + client, Command::kBarrier, {"b"}, kMany + 1), kNothing);
  }
  std::uint64_t answered_at_once = 0;
  store.between_slices = [&] {
    store.between_slices = nullptr;
    answered_at_once = kMany - store.state().parked_count();
    store.close(1000 + kMany - 1);
  };
  EXPECT_EQ(store.ask(1, Command::kBarrier, {"b"}, kMany + 1), kReady);
  EXPECT_LT(answered_at_once, KvState::kSliceCost);
  for (std::uint64_t client = 0; client < kMany - 1; ++client) {
    EXPECT_EQ(store.mail(1000 + client), kReady);
  }
  EXPECT_EQ(store.mail(1000 + kMany - 1), kNothing);
  EXPECT_EQ(store.state().held_bytes(), kEntry + 1 + 4);
}

TEST(KvState, ABarrierThatOpensDoesNotOpenTheNextOneOfItsKey) {
  Store store;
  for (std::uint64_t client = 0; client < kMany; ++client) {
    EXPECT_EQ(store.ask(1000 + client, Command::kBarrier, {"b"}, kMany + 1), kNothing);
  }
  store.between_slices = [&] {
    store.between_slices = nullptr;
    EXPECT_LT(store.state().parked_count(), kMany);
    store.leaves_work = true;
    store.ask(2, Command::kDeleteKey, {"b"});
    store.ask(3, Command::kBarrier, {"b"}, 2);
    store.leaves_work = false;
  };
  EXPECT_EQ(store.ask(1, Command::kBarrier, {"b"}, kMany + 1), kReady);
  for (std::uint64_t client = 0; client < kMany; ++client) {
    EXPECT_EQ(store.mail(1000 + client), kReady);
  }
  EXPECT_EQ(store.mail(3), kNothing);
  EXPECT_EQ(store.state().parked_count(), 1u);
  EXPECT_EQ(store.ask(4, Command::kBarrier, {"b"}, 2), kReady);
  EXPECT_EQ(store.mail(3), kReady);
}

TEST(KvState, ALongWaitThatFindsTheStoreFullGivesAllBack) {
  Store store({.held_bytes = kMany * kEntry / 2});
  EXPECT_EQ(store.ask(1, Command::kWait, many_keys("k", kMany)), kNothing);
  EXPECT_EQ(store.last_kind, Refusal::kHeldLimit);
  EXPECT_EQ(store.state().held_bytes(), 0u);
  EXPECT_EQ(store.state().parked_count(), 0u);
}

// --- how much is held ---

struct Growth {
  const char* name;
  Command command;
  std::vector<std::string> strings;
  std::int64_t number;
  std::int64_t bytes;  // what it adds to a store that holds k = "1", and q with one item of 4 bytes
};

std::vector<Growth> growths() {
  constexpr auto kMore = static_cast<std::int64_t>(kEntry);
  return {
      {"SET, new", Command::kSet, {"key", "value"}, 0, kMore + 8},
      {"SET, longer", Command::kSet, {"k", "value"}, 0, 4},
      {"SET, shorter", Command::kSet, {"k", ""}, 0, -1},
      {"ADD, new", Command::kAdd, {"n"}, 100, kMore + 4},
      {"ADD, longer", Command::kAdd, {"k"}, 99, 2},
      {"ADD, as long", Command::kAdd, {"k"}, 1, 0},
      {"APPEND, new", Command::kAppend, {"key", "value"}, 0, kMore + 8},
      {"APPEND", Command::kAppend, {"k", "value"}, 0, 5},
      {"COMPARE_SET, new", Command::kCompareSet, {"key", "", "value"}, 0, kMore + 8},
      {"COMPARE_SET, longer", Command::kCompareSet, {"k", "1", "value"}, 0, 4},
      {"COMPARE_SET that does not", Command::kCompareSet, {"k", "2", "value"}, 0, 0},
      {"MULTI_SET", Command::kMultiSet, {"a", "123", "b", ""}, 0, 2 * kMore + 5},
      {"QUEUE_PUSH, new", Command::kQueuePush, {"key", "value"}, 0, 2 * kMore + 8},
      {"QUEUE_PUSH", Command::kQueuePush, {"q", "value"}, 0, kMore + 5},
      {"QUEUE_POP, the last", Command::kQueuePop, {"q"}, 0, -2 * kMore - 5},
      {"DELETE_KEY", Command::kDeleteKey, {"k"}, 0, -kMore - 2},
      {"DELETE_KEY of nothing", Command::kDeleteKey, {"key"}, 0, 0},
      {"WAIT", Command::kWait, {"key", "k", "key"}, 0, kMore + 3},
      {"WAIT that is over", Command::kWait, {"k", "q"}, 0, 0},
      {"GET", Command::kGet, {"k"}, 0, 0},
  };
}

Store a_store_that_holds_a_little(std::size_t held_bytes) {
  Store store({.held_bytes = held_bytes});
  store.set("k", "1");
  store.push("q", "item");
  return store;
}

TEST(KvState, CountsWhatItHolds) {
  for (const Growth& growth : growths()) {
    Store store = a_store_that_holds_a_little(1 << 20);
    const std::size_t before = store.state().held_bytes();
    EXPECT_EQ(before, 3 * kEntry + 2 + 5);
    store.ask(1, growth.command, growth.strings, growth.number);
    EXPECT_EQ(static_cast<std::int64_t>(store.state().held_bytes() - before), growth.bytes)
        << growth.name;
  }
}

TEST(KvState, WhatWouldPassTheBytesHeldIsRefusedAndChangesNothing) {
  for (const Growth& growth : growths()) {
    if (growth.bytes <= 0) continue;
    const std::size_t before = 3 * kEntry + 2 + 5;
    const std::size_t after = before + static_cast<std::size_t>(growth.bytes);
    Store roomy = a_store_that_holds_a_little(after);
    roomy.ask(1, growth.command, growth.strings, growth.number);
    EXPECT_EQ(roomy.last_refusal, "") << growth.name;
    EXPECT_EQ(roomy.state().held_bytes(), after) << growth.name;

    Store tight = a_store_that_holds_a_little(after - 1);
    EXPECT_EQ(tight.ask(1, growth.command, growth.strings, growth.number), kNothing);
    EXPECT_EQ(tight.last_kind, Refusal::kHeldLimit) << growth.name;
    EXPECT_EQ(tight.state().held_bytes(), before) << growth.name;
    EXPECT_EQ(tight.state().parked_count(), 0u) << growth.name;
    EXPECT_EQ(tight.get("k"), "1") << growth.name;
    EXPECT_EQ(tight.ask(2, Command::kListKeys), i64(1) + string_reply("k")) << growth.name;
    EXPECT_EQ(tight.ask(2, Command::kQueueLen, {"q"}), i64(1)) << growth.name;
  }
}

TEST(KvState, AFullStoreStillTakesWhatNeedsNoRoom) {
  Store store = a_store_that_holds_a_little(3 * kEntry + 2 + 5);
  store.ask(1, Command::kSet, {"new", ""});
  EXPECT_EQ(store.last_refusal, "SET: the store holds 391 bytes (at most 391)");
  store.set("k", "2");
  EXPECT_EQ(store.ask(1, Command::kAdd, {"k"}, 1), i64(3));
  EXPECT_EQ(store.ask(1, Command::kQueuePop, {"q"}), i64(1) + string_reply("item"));
  store.set("new", "it fits now");
  EXPECT_EQ(store.get("new"), "it fits now");
}

TEST(KvState, AMultiSetNeedsRoomForAllItsPairsWhateverItOverwrites) {
  Store store({.held_bytes = 3 * kEntry + 10});
  store.set("a", "1");
  store.set("b", "2");
  store.ask(1, Command::kMultiSet, {"a", "3", "a", "4"});
  EXPECT_EQ(store.last_kind, Refusal::kHeldLimit);
  EXPECT_EQ(store.get("a"), "1");
  store.ask(1, Command::kMultiSet, {"a", "3"});
  EXPECT_EQ(store.last_refusal, "");
  EXPECT_EQ(store.get("a"), "3");
}

TEST(KvState, ABarrierIsHeldAsItsCounterAndWhoWaits) {
  Store store({.held_bytes = 2 * kEntry + 3});
  EXPECT_EQ(store.ask(1, Command::kBarrier, {"b"}, 2), kNothing);
  EXPECT_EQ(store.last_refusal, "");
  EXPECT_EQ(store.state().held_bytes(), 2 * kEntry + 3);
  EXPECT_EQ(store.ask(2, Command::kBarrier, {"b"}, 2), kNothing);
  EXPECT_EQ(store.last_kind, Refusal::kHeldLimit);
  EXPECT_EQ(store.get("b"), "1");
  store.close(1);
  EXPECT_EQ(store.state().held_bytes(), kEntry + 2);
}

TEST(Replies, JoinsWhatFollowsForOneConnection) {
  Replies replies;
  put_u8(replies.to(StoreConnectionId(1)), 1);
  put_u8(replies.to(StoreConnectionId(1)), 2);
  put_u8(replies.to(StoreConnectionId(2)), 3);
  put_u8(replies.to(StoreConnectionId(1)), 4);
  ASSERT_EQ(replies.pieces(), 3u);
  EXPECT_EQ(replies.piece(0).bytes, "\x01\x02");
  EXPECT_EQ(replies.piece(1).to, StoreConnectionId(2));
  EXPECT_EQ(replies.piece(2).bytes, "\x04");
  replies.clear();
  EXPECT_EQ(replies.pieces(), 0u);
  EXPECT_EQ(replies.bytes(), 0u);
}

// --- against a model that is too simple to be wrong ---

// Model: finds the waiting clients by a search through all of them, in order of arrival.
class Model {
 public:
  struct Wait {
    std::uint64_t client;
    std::set<std::string> missing;
  };

  bool exists(const std::string& key) const { return values_.contains(key) || queues_[key] > 0; }
  bool waits(std::uint64_t client) const {
    return std::any_of(waits_.begin(), waits_.end(),
                       [&](const Wait& wait) { return wait.client == client; });
  }
  // All of these functions return the clients that are answered.
  std::multiset<std::uint64_t> wait(std::uint64_t client, const std::vector<std::string>& keys) {
    std::set<std::string> missing;
    for (const std::string& key : keys) {
      if (!exists(key)) missing.insert(key);
    }
    if (missing.empty()) return {client};
    waits_.push_back({client, missing});
    return {};
  }
  std::multiset<std::uint64_t> set(const std::string& key) {
    values_.insert(key);
    return appeared(key, waits_.size());
  }
  std::multiset<std::uint64_t> push(const std::string& key) {
    ++queues_[key];
    return appeared(key, 1);
  }
  void pop(const std::string& key) {
    if (queues_[key] > 0) --queues_[key];
  }
  void erase(const std::string& key) { values_.erase(key); }
  void leave(std::uint64_t client) {
    std::erase_if(waits_, [&](const Wait& wait) { return wait.client == client; });
  }
  std::size_t waiting() const { return waits_.size(); }

 private:
  std::multiset<std::uint64_t> appeared(const std::string& key, std::size_t most) {
    std::multiset<std::uint64_t> answered;
    for (Wait& wait : waits_) {
      if (most == 0) break;
      if (wait.missing.erase(key) == 0) continue;
      --most;
      if (wait.missing.empty()) answered.insert(wait.client);
    }
    std::erase_if(waits_, [](const Wait& wait) { return wait.missing.empty(); });
    return answered;
  }

  std::vector<Wait> waits_;
  std::set<std::string> values_;
  mutable std::map<std::string, int> queues_;
};

class KvStateRandom : public testing::TestWithParam<std::uint64_t> {};

TEST_P(KvStateRandom, WakesWhomTheModelWakes) {
  Rng rng(GetParam());
  Store store;
  Model model;
  constexpr std::uint64_t kClients = 8;
  std::set<std::uint64_t> fetching;  // clients whose last wait is a FETCH
  const auto some_key = [&] { return std::string(1, static_cast<char>('a' + rng.below(6))); };
  for (int step = 0; step < 3000; ++step) {
    const std::uint64_t client = rng.below(kClients);
    const std::string key = some_key();
    std::multiset<std::uint64_t> expected;
    std::string own;
    switch (rng.below(8)) {
      case 0:
      case 1:
      case 2: {
        if (model.waits(client)) continue;
        std::vector<std::string> keys;
        for (std::uint64_t i = rng.below(5); i > 0; --i) keys.push_back(some_key());
        expected = model.wait(client, keys);
        const bool fetches = keys.size() == 1 && rng.chance(0.5);
        fetching.erase(client);
        if (fetches) fetching.insert(client);
        own = store.ask(client, fetches ? Command::kFetch : Command::kWait, keys);
        break;
      }
      case 3:
        expected = model.set(key);
        own = store.ask(client, Command::kSet, {key, "v"});
        break;
      case 4:
        expected = model.push(key);
        own = store.ask(client, Command::kQueuePush, {key, "v"});
        break;
      case 5:
        model.erase(key);
        store.ask(client, Command::kDeleteKey, {key});
        break;
      case 6:
        model.pop(key);
        store.ask(client, Command::kQueuePop, {key});
        break;
      case 7:
        model.leave(client);
        if (rng.chance(0.5)) {
          store.close(client);
        } else {
          store.ask(client, Command::kCancelWait);
        }
        break;
    }
    std::multiset<std::uint64_t> answered;
    for (std::uint64_t other = 0; other < kClients; ++other) {
      const std::string got = other == client ? own : store.mail(other);
      if (fetching.contains(other) && !got.empty()) {
        // A FETCH does not return the item of a queue.
        ASSERT_TRUE(got == bytes_fetched("v") || got == bytes_fetched("")) << "step " << step;
        answered.insert(other);
        continue;
      }
      for (std::size_t i = 0; i < got.size(); ++i) answered.insert(other);
    }
    ASSERT_EQ(answered, expected) << "step " << step;
    ASSERT_EQ(store.state().parked_count(), model.waiting()) << "step " << step;
    ASSERT_EQ(store.ask(99, Command::kCheck, {key}), u8(model.exists(key) ? 0 : 1));
  }
}

// HeldModel: holds the same data in the simplest way, and counts all of it again each time.
struct HeldModel {
  std::map<std::string, std::string> values;
  std::map<std::string, std::deque<std::string>> queues;
  std::map<std::uint64_t, std::set<std::string>> waits;

  std::size_t recount() const {
    std::size_t sum = 0;
    for (const auto& [key, value] : values) sum += kEntry + key.size() + value.size();
    for (const auto& [key, queue] : queues) {
      if (!queue.empty()) sum += kEntry + key.size();
      for (const std::string& item : queue) sum += kEntry + item.size();
    }
    for (const auto& [client, keys] : waits) {
      for (const std::string& key : keys) sum += kEntry + key.size();
    }
    return sum;
  }
  bool exists(const std::string& key) { return values.contains(key) || !queues[key].empty(); }
  // Ends the waits for this key.
  void appeared(const std::string& key) {
    for (auto& [client, keys] : waits) keys.erase(key);
    std::erase_if(waits, [](const auto& wait) { return wait.second.empty(); });
  }
  void set(const std::string& key, const std::string& value) {
    if (!values.contains(key)) appeared(key);
    values[key] = value;
  }
};

TEST_P(KvStateRandom, HoldsWhatTheModelCountsAndNeverMoreThanAllowed) {
  Rng rng(GetParam());
  constexpr std::size_t kAllowed = 16 * kEntry;
  Store store({.held_bytes = kAllowed});
  HeldModel model;
  int refused = 0;
  const auto some_key = [&] {
    return std::string(1 + rng.below(3), static_cast<char>('a' + rng.below(4)));
  };
  const auto some_value = [&] { return std::string(rng.below(200), '7'); };
  for (int step = 0; step < 5000; ++step) {
    const std::uint64_t client = rng.below(4);
    const std::string key = some_key(), value = some_value();
    HeldModel next = model;  // the state if the request is not refused
    const auto ask = [&](Command command, std::vector<std::string> strings,
                         std::int64_t number = 0) {
      store.ask(client, command, std::move(strings), number);
    };
    switch (rng.below(9)) {
      case 0:
        next.set(key, value);
        ask(Command::kSet, {key, value});
        break;
      case 1:
        next.set(key, (model.values.contains(key) ? model.values[key] : "") + value);
        ask(Command::kAppend, {key, value});
        break;
      case 2: {
        // Skips values that are not a short number.
        const std::string held = model.values.contains(key) ? model.values[key] : "0";
        if (held.empty() || held.size() > 15) continue;
        next.set(key, std::to_string(std::stoll(held) + 95));
        ask(Command::kAdd, {key}, 95);
        break;
      }
      case 3:
        if (model.values.contains(key)) continue;
        next.set(key, value);
        ask(Command::kCompareSet, {key, "", value});
        break;
      case 4: {
        const std::string other = some_key();
        next.set(key, value);
        next.set(other, "");
        next.set(key, "4711");
        ask(Command::kMultiSet, {key, value, other, "", key, "4711"});
        break;
      }
      case 5: {
        // This model does not know the oldest waiter. So no client waits for the keys of queues.
        const std::string queue = "queue" + key;
        next.queues[queue].push_back(value);
        ask(Command::kQueuePush, {queue, value});
        break;
      }
      case 6:
        if (!next.queues["queue" + key].empty()) next.queues["queue" + key].pop_front();
        ask(Command::kQueuePop, {"queue" + key});
        break;
      case 7:
        next.values.erase(key);
        ask(Command::kDeleteKey, {key});
        break;
      case 8: {
        next.waits.erase(client);
        model.waits.erase(client);
        store.close(client);
        std::set<std::string> missing;
        for (const std::string& one : {key, some_key(), key}) {
          if (!next.exists(one)) missing.insert(one);
        }
        if (!missing.empty()) next.waits[client] = missing;
        ask(Command::kWait, {missing.begin(), missing.end()});
        break;
      }
    }
    if (store.last_kind) {
      ++refused;
      ASSERT_EQ(store.last_kind, Refusal::kHeldLimit) << "step " << step;
    } else {
      model = next;
    }
    ASSERT_EQ(store.state().held_bytes(), model.recount()) << "step " << step;
    ASSERT_LE(store.state().held_bytes(), kAllowed);
  }
  EXPECT_GT(refused, 100);
  for (const auto& [key, value] : HeldModel(model).values) store.ask(1, Command::kDeleteKey, {key});
  for (const auto& [key, queue] : model.queues) {
    for (std::size_t i = 0; i < queue.size(); ++i) store.ask(1, Command::kQueuePop, {key});
  }
  for (std::uint64_t client = 0; client < 4; ++client) store.close(client);
  EXPECT_EQ(store.state().held_bytes(), 0u);
}

INSTANTIATE_TEST_SUITE_P(Seeds, KvStateRandom, testing::Range<std::uint64_t>(1, 21));

}  // namespace
}  // namespace ddprun
