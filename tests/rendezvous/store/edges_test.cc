// Tests what the store does at the edges of its protocol. Each row has the bytes that are sent
// and the bytes that come back. See docs/reference/wire_protocol.md, "Where there was a choice".
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/eventually.h"
#include "tests/support/raw_store_client.h"
#include "tests/support/running_store.h"

namespace ddprun {
namespace {

using namespace std::literals;
using testing_support::eventually;
using testing_support::handshake;
using testing_support::i64;
using testing_support::RawStoreClient;
using testing_support::RawTcpClient;
using testing_support::request;
using testing_support::RunningStore;
using testing_support::string_reply;

const std::string kReady = "\0"s;
const std::string kNotReady = "\1"s;
const std::string kCancelled = "\1"s;

std::string set(std::string_view key, std::string_view value) {
  return request(Command::kSet, {key, value});
}
std::string get(std::string_view key) { return request(Command::kGet, {key}); }
std::string add(std::string_view key, std::int64_t delta) {
  return request(Command::kAdd, {key}, delta);
}
std::string wait(std::vector<std::string_view> keys) {
  return request(Command::kWait, std::move(keys));
}
std::string push(std::string_view key, std::string_view value) {
  return request(Command::kQueuePush, {key, value});
}
std::string in(Dialect dialect, Command command, std::vector<std::string_view> strings = {},
               std::int64_t number = 0) {
  return request(command, std::move(strings), number, dialect);
}
std::string l1(Command command, std::vector<std::string_view> strings = {},
               std::int64_t number = 0) {
  return in(Dialect::kL1, command, std::move(strings), number);
}
std::string l2(Command command, std::vector<std::string_view> strings = {},
               std::int64_t number = 0) {
  return in(Dialect::kL2, command, std::move(strings), number);
}

// Step: the bytes that a client sends, and the bytes that it then reads.
struct Step {
  // The first step with a letter makes the client. Its connection begins with no bytes.
  char client;
  std::string sends;
  std::string reads;
  // The number of connections that wait afterwards. The step ends when this number is reached.
  std::size_t waiting = 0;
  enum { kStaysOpen, kIsClosed } then = kStaysOpen;
};

struct Edge {
  const char* name;
  std::vector<Step> steps;
};

const std::vector<Edge>& edges() {
  static const std::string hello = handshake();
  static const std::vector<Edge> all{
      {"GET of a missing key", {{'a', hello + get("k"), string_reply("")}}},
      {"ADD on text", {{'a', hello + set("k", "abc") + add("k", 1), "", 0, Step::kIsClosed}}},
      {"ADD on nothing", {{'a', hello + set("k", "") + add("k", 1), "", 0, Step::kIsClosed}}},
      {"ADD on 12abc", {{'a', hello + set("k", "12abc") + add("k", 1), i64(13)}}},
      {"ADD on a number between spaces", {{'a', hello + set("k", " 7 ") + add("k", 1), i64(8)}}},
      {"ADD wraps",
       {{'a', hello + set("k", "9223372036854775807") + add("k", 1),
         i64(std::numeric_limits<std::int64_t>::min())}}},
      {"ADD 0 on a missing key",
       {{'a', hello + wait({"k"}), "", 1},
        {'b', hello + add("k", 0) + get("k"), i64(0) + string_reply("0")},
        {'a', "", kReady}}},
      {"unknown opcode", {{'a', hello + "\x13", "", 0, Step::kIsClosed}}},
      {"queues",
       {{'a',
         hello + push("q", "x") + request(Command::kQueueLen, {"q"}) +
             request(Command::kQueuePop, {"q"}) + request(Command::kQueuePop, {"q"}),
         i64(1) + i64(1) + string_reply("x") + i64(0)}}},
      {"a BARRIER of two",
       {{'a', hello + request(Command::kBarrier, {"b"}, 2), "", 1},
        {'b', hello + request(Command::kBarrier, {"b"}, 2), kReady},
        {'a', "", kReady}}},
      {"first is a PING", {{'a', request(Command::kPing, {}, 7), "", 0, Step::kIsClosed}}},
      {"wrong magic", {{'a', "\x00\x01\x02\x03\x04"s, "", 0, Step::kIsClosed}}},
      {"wrong magic, then a request",
       {{'a', "\x00\x01\x02\x03\x04"s + add("k", 1), "", 0, Step::kIsClosed}}},
      {"second VALIDATE", {{'a', hello + hello, "", 0, Step::kIsClosed}}},
      {"VALIDATE in two pieces",
       {{'a', hello.substr(0, 2), ""}, {'a', hello.substr(2) + add("k", 1), i64(1)}}},
      {"handshake, PING and request in one segment",
       {{'a', hello + request(Command::kPing, {}, 7) + add("k", 1), "\7\0\0\0"s + i64(1)}}},
      {"COMPARE_SET that creates wakes",
       {{'a', hello + wait({"k"}), "", 1},
        {'b', hello + request(Command::kCompareSet, {"k", "", "new"}), string_reply("new")},
        {'a', "", kReady}}},
      {"COMPARE_SET that expects a missing key's value does not wake",
       {{'a', hello + wait({"k"}), "", 1},
        {'b', hello + request(Command::kCompareSet, {"k", "old", "new"}), string_reply("old"), 1},
        {'a', request(Command::kCancelWait), kCancelled}}},
      {"APPEND wakes",
       {{'a', hello + wait({"k"}), "", 1},
        {'b', hello + request(Command::kAppend, {"k", "v"}), ""},
        {'a', "", kReady}}},
      {"MULTI_SET wakes",
       {{'a', hello + wait({"k"}), "", 1},
        {'b', hello + request(Command::kMultiSet, {"x", "1", "k", "2"}), ""},
        {'a', "", kReady}}},
      {"a key twice in one WAIT",
       {{'a', hello + wait({"k", "k"}), "", 1},
        {'b', hello + set("k", ""), ""},
        {'a', "", kReady}}},
      {"a WAIT's first key comes and goes",
       {{'a', hello + wait({"k", "l"}), "", 1},
        {'b', hello + set("k", "") + request(Command::kDeleteKey, {"k"}) + set("l", ""), i64(1)},
        {'a', get("k"), kReady + string_reply("")}}},
      {"WAIT on a filled queue and a missing key",
       {{'b', hello + push("q", "x") + add("n", 1), i64(1)},
        {'a', hello + wait({"q", "k"}), "", 1},
        {'b', set("k", ""), ""},
        {'a', "", kReady}}},
      {"woken by a push, now waiting for something else",
       {{'a', hello + wait({"q"}), "", 1},
        {'b', hello + push("q", "x"), ""},
        {'a', wait({"k"}), kReady, 1},
        {'b', push("q", "y") + add("n", 1), i64(1), 1},
        {'a', request(Command::kCancelWait), kCancelled}}},
      {"a push wakes the oldest waiter, not one that cancelled or left",
       {{'a', hello + wait({"q"}), "", 1},
        {'b', hello + wait({"q"}), "", 2},
        {'a', request(Command::kCancelWait), kCancelled, 1},
        {'c', hello + push("q", "x"), ""},
        {'b', "", kReady}}},
      {"a request while the WAIT is pending",
       {{'a', hello + wait({"k"}), "", 1},
        {'a', add("n", 1), i64(1), 1},
        {'b', hello + set("k", ""), ""},
        {'a', "", kReady}}},
      {"a second WAIT while one is pending",
       {{'a', hello + wait({"k"}), "", 1}, {'a', wait({"l"}), "", 0, Step::kIsClosed}}},
      {"CANCEL_WAIT with nothing pending",
       {{'a', hello + request(Command::kCancelWait), kCancelled}}},
      {"a wake that crosses the CANCEL_WAIT",
       {{'a', hello + wait({"k"}), "", 1},
        {'b', hello + set("k", ""), ""},
        {'a', request(Command::kCancelWait), kReady + kCancelled}}},
      {"empty key, empty value, NUL in a key",
       {{'a', hello + set("", "") + set("a\0b"sv, "v") + get("") + get("a\0b"sv) + get("a"),
         string_reply("") + string_reply("v") + string_reply("")}}},
      {"lists of nothing",
       {{'a',
         hello + wait({}) + request(Command::kCheck) + request(Command::kMultiGet) +
             request(Command::kMultiSet) + request(Command::kGetNumKeys),
         kReady + kReady + i64(0)}}},
      {"a key past the limit is refused before it comes",
       {{'a', hello + "\x03" + i64(8193), "", 0, Step::kIsClosed}}},
      {"a value past the limit is refused before it comes",
       {{'a', hello + "\x01" + string_reply("k") + i64(8388609), "", 0, Step::kIsClosed}}},
      {"keys past the limit are refused before they come",
       {{'a', hello + "\x06" + i64(131073), "", 0, Step::kIsClosed}}},
      {"half a SET hurts nobody",
       {{'a', hello + set("k", "value").substr(0, 12), ""}, {'b', hello + add("n", 1), i64(1)}}},

      // --- the legacy dialects ---
      {"L1: its own numbers",
       {{'a',
         l1(Command::kSet, {"k", "v"}) + l1(Command::kCompareSet, {"k", "v", "w"}) +
             l1(Command::kGet, {"k"}) + l1(Command::kAdd, {"n"}, 5) +
             l1(Command::kCheck, {"k", "l"}) + l1(Command::kWait, {"k"}) +
             l1(Command::kGetNumKeys) + l1(Command::kDeleteKey, {"k"}),
         string_reply("w") + string_reply("w") + i64(5) + kNotReady + kReady + i64(2) + i64(1)}}},
      {"L2: its own numbers, once one of them is past L1's",
       {{'a',
         l2(Command::kMultiSet, {"k", "v"}) + l2(Command::kAppend, {"k", "w"}) +
             l2(Command::kMultiGet, {"k", "l"}) + l2(Command::kDeleteKey, {"k"}) +
             l2(Command::kCancelWait),
         string_reply("vw") + string_reply("") + i64(1) + kCancelled}}},
      {"WATCH_KEY is answered and tells no change",
       {{'a', l1(Command::kWatchKey, {"k"}), "\3"},
        {'b', hello + set("k", "v") + get("k"), string_reply("v")},
        {'a', l1(Command::kAdd, {"n"}, 1), i64(1)}}},
      {"an L1 client whose WAIT has timed out",
       {{'a', l1(Command::kWait, {"k"}), "", 1},
        {'a', l1(Command::kAdd, {"n"}, 1), i64(1)},
        {'b', hello + set("k", "v") + get("k"), string_reply("v")},
        {'a', l1(Command::kAdd, {"n"}, 1), i64(2)}}},
      {"an L1 client whose WAIT has timed out and that has sent half a request",
       {{'a', l1(Command::kWait, {"k"}), "", 1},
        {'a', l1(Command::kGet, {"k"}).substr(0, 1), ""},
        {'b', hello + set("k", "v") + get("k"), string_reply("v")},
        {'a', l1(Command::kGet, {"k"}).substr(1), string_reply("v")}}},
      {"an L1 client that waits again",
       {{'a', l1(Command::kWait, {"k"}), "", 1},
        {'a', l1(Command::kWait, {"l"}), "", 1},
        {'b', hello + set("k", "") + set("l", ""), ""},
        {'a', l1(Command::kGetNumKeys), kReady + i64(2)}}},
      {"an L2 client that cancels",
       {{'a', l2(Command::kWait, {"k"}), "", 1},
        {'a', l2(Command::kCancelWait), kCancelled},
        {'a', l2(Command::kAdd, {"n"}, 1), i64(1)}}},
      {"an unknown opcode of a legacy client",
       {{'a', l1(Command::kAdd, {"n"}, 1) + "\x0C", i64(1), 0, Step::kIsClosed}}},
  };
  return all;
}

// Plays the steps of an edge. piece_bytes: the number of bytes in one send.
void play(const Edge& edge, std::size_t piece_bytes) {
  SCOPED_TRACE(edge.name);
  RunningStore store;
  RawStoreClient bystander(store);
  std::map<char, std::unique_ptr<RawTcpClient>> clients;
  for (const Step& step : edge.steps) {
    std::unique_ptr<RawTcpClient>& client = clients[step.client];
    if (!client) client = std::make_unique<RawTcpClient>(store.port());
    for (std::string_view rest = step.sends; !rest.empty();) {
      if (!client->offer(rest.substr(0, piece_bytes))) {
        EXPECT_EQ(step.then, Step::kIsClosed);
        break;
      }
      rest.remove_prefix(std::min(piece_bytes, rest.size()));
    }
    ASSERT_EQ(client->receive(step.reads.size()), step.reads) << "client " << step.client;
    if (step.then == Step::kIsClosed) {
      ASSERT_TRUE(client->is_closed());
    } else {
      ASSERT_TRUE(eventually([&] { return store.counters().waiting == step.waiting; }))
          << store.counters().waiting << " wait after client " << step.client;
    }
    EXPECT_EQ(bystander.add("bystander", 0), 0) << "others are served";
    EXPECT_EQ(bystander.ask(request(Command::kDeleteKey, {"bystander"}), 8), i64(1));
  }
  for (const auto& [letter, client] : clients) {
    EXPECT_FALSE(client->has_bytes()) << "client " << letter << " was sent too much";
  }
}

TEST(StoreEdges, EachIsAsThePageSays) {
  for (const Edge& edge : edges()) play(edge, std::string::npos);
}

TEST(StoreEdges, EachIsTheSameByteByByte) {
  for (const Edge& edge : edges()) play(edge, 1);
}

TEST(StoreEdges, ARequestBeforeTheEndOfTheStreamIsAnswered) {
  for (const Dialect dialect : {Dialect::kModern, Dialect::kL2, Dialect::kL1}) {
    RunningStore store;
    RawStoreClient client(store, dialect);
    client.send(request(Command::kAdd, {"n"}, 5, dialect));
    client.close_sending_side();
    EXPECT_EQ(client.receive(8), i64(5));
    EXPECT_TRUE(client.is_closed());
  }
}

TEST(StoreEdges, LegacyClientsAreReadAsL2WhenTheStoreIsToldSo) {
  RunningStore store({.legacy_dialect = Dialect::kL2});
  RawStoreClient client(store, Dialect::kL2), waiting(store, Dialect::kL2);
  EXPECT_EQ(client.ask(l2(Command::kAppend, {"k", "v"}) + l2(Command::kGet, {"k"}), 9),
            string_reply("v"));
  EXPECT_EQ(client.ask(l2(Command::kDeleteKey, {"k"}), 8), i64(1));
  waiting.send(l2(Command::kWait, {"k"}));
  ASSERT_TRUE(eventually([&] { return store.counters().waiting == 1; }));
  EXPECT_EQ(waiting.add("n", 1), 1);
  EXPECT_EQ(store.counters().waiting, 1u) << "L2 can say CANCEL_WAIT, so it keeps its wait";
}

// PyTorch up to 2.0 opens two connections. The thread that watches the second one busy-loops
// when it closes.
TEST(StoreEdges, TheSilentSecondConnectionOfALegacyClientStays) {
  RunningStore store;
  RawStoreClient first(store, Dialect::kL1);
  RawTcpClient second(store.port());
  EXPECT_EQ(first.add("init/", 1), 1);
  EXPECT_TRUE(eventually([&] { return store.counters().connections == 2; }));
  first.close();
  EXPECT_TRUE(eventually([&] { return store.counters().connections == 1; }));
  EXPECT_FALSE(second.has_bytes());
}

}  // namespace
}  // namespace ddprun
