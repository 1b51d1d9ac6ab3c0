#include "rendezvous/store/client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <atomic>
#include <thread>

#include "tests/support/child_process.h"
#include "tests/support/client_of.h"
#include "tests/support/held_port.h"
#include "tests/support/host_has.h"
#include "tests/support/running_store.h"
#include "tests/support/store_bytes.h"

namespace ddprun {
namespace {

using namespace std::literals;
using testing::ContainsRegex;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::MatchesRegex;
using testing_support::eventually;
using testing_support::HeldPort;
using testing_support::RunningStore;
using testing_support::string_reply;

using ClientPtr = std::unique_ptr<StoreClient>;

ClientPtr client_of(std::uint16_t port, const std::string& prefix = "") {
  return testing_support::client_of(port,
                                    {.prefix = prefix, .connect_timeout = 10s, .timeout = 10s})
      .value();
}

// ScriptedServer: runs the test's script with each connection in turn, on its own thread.
class ScriptedServer {
 public:
  using Script = std::function<void(int socket, int number)>;

  explicit ScriptedServer(Script script) {
    Result<Listener> listener = listen_tcp({.host = "127.0.0.1", .port = 0});
    port_ = listener->address.port;
    listener_ = std::move(listener->socket);
    thread_ = std::thread([this, script = std::move(script)] {
      for (int number = 0;; ++number) {
        pollfd entry{.fd = listener_.get(), .events = POLLIN, .revents = 0};
        poll(&entry, 1, -1);
        const UniqueFd socket(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
        if (!socket.valid()) return;
        script(socket.get(), number);
      }
    });
  }
  ~ScriptedServer() {
    ::shutdown(listener_.get(), SHUT_RDWR);
    thread_.join();
  }
  std::uint16_t port() const { return port_; }

 private:
  UniqueFd listener_;
  std::uint16_t port_ = 0;
  std::thread thread_;
};

void read_bytes(int socket, std::size_t count) {
  std::string bytes(count, '\0');
  ASSERT_EQ(recv(socket, bytes.data(), count, MSG_WAITALL), static_cast<ssize_t>(count));
}
void write_bytes(int socket, std::string_view bytes) {
  ASSERT_EQ(send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(bytes.size()));
}
// Returns the number of bytes of a request whose only field is this key.
std::size_t request_of(std::string_view key) { return 1 + 8 + 1 + key.size(); }

const std::string kIdentity(kIdentityBytes, 'a');

// Does the handshake: reads what our client sends first, and answers as a store with this
// identity. By default it answers as PyTorch's store.
void shake_hands(int socket, std::string_view identity = kNoIdentity) {
  read_bytes(socket, 5 + 1 + 8 + kIdentityKey.size() + 2 * (8 + kNoIdentity.size()));
  write_bytes(socket, string_reply(identity));
}
void read_to_the_end(int socket) {
  char byte;
  while (recv(socket, &byte, 1, 0) > 0) {
  }
}

// --- the operations ---

TEST(StoreClient, SetsAndGets) {
  RunningStore store;
  const ClientPtr client = client_of(store.port());
  ASSERT_TRUE(client->set("k", "v\0w"sv));
  EXPECT_EQ(*client->get("k", 10s), "v\0w"s);
  ASSERT_TRUE(client->set("k", ""));
  EXPECT_EQ(*client->get("k", 10s), "");
}

TEST(StoreClient, CarriesTheLargestValue) {
  RunningStore store;
  const ClientPtr client = client_of(store.port());
  std::string value(RequestLimits{}.value_bytes, '\0');
  for (std::size_t i = 0; i < value.size(); ++i) value[i] = static_cast<char>(i * 7 + i / 251);
  ASSERT_TRUE(client->set("k", value));
  EXPECT_TRUE(*client->get("k", 10s) == value);
}

TEST(StoreClient, AddsAndCounts) {
  RunningStore store;
  const ClientPtr client = client_of(store.port());
  EXPECT_EQ(*client->add("n", 5), 5);
  EXPECT_EQ(*client->add("n", -7), -2);
  EXPECT_EQ(*client->num_keys(), 1);
}

TEST(StoreClient, ChecksAndDeletes) {
  RunningStore store;
  const ClientPtr client = client_of(store.port());
  EXPECT_FALSE(*client->check({"a"}));
  ASSERT_TRUE(client->set("a", "1"));
  EXPECT_TRUE(*client->check({"a"}));
  EXPECT_FALSE(*client->check({"a", "b"}));
  EXPECT_TRUE(*client->delete_key("a"));
  EXPECT_FALSE(*client->delete_key("a"));
}

TEST(StoreClient, GetsManyKeysAtOnceAndListsThem) {
  RunningStore store;
  const ClientPtr client = client_of(store.port());
  ASSERT_TRUE(client->set("a", "1"));
  ASSERT_TRUE(client->set("b", ""));
  ASSERT_TRUE(client->set("c", "3"));
  EXPECT_THAT(*client->multi_get({"c", "b", "a"}, 10s), ElementsAre("3", "", "1"));
  EXPECT_THAT(*client->multi_get({}, 10s), IsEmpty());
  EXPECT_THAT(*client->list_keys(), ElementsAre("a", "b", "c"));
}

TEST(StoreClient, GetWaitsForTheKey) {
  RunningStore store;
  std::thread setter([&] {
    const ClientPtr client = client_of(store.port());
    ASSERT_TRUE(eventually([&] { return store.counters().waiting == 1; }));
    ASSERT_TRUE(client->set("k", "v"));
  });
  EXPECT_EQ(*client_of(store.port())->get("k", 10s), "v");
  setter.join();
}

TEST(StoreClient, PutsItsPrefixInFrontOfEveryKey) {
  RunningStore store;
  const ClientPtr inner = client_of(store.port(), "group/0");
  const ClientPtr outer = client_of(store.port());
  ASSERT_TRUE(inner->set("k", "v"));
  EXPECT_EQ(*outer->get("group/0/k", 10s), "v");
  ASSERT_TRUE(outer->set("k", "other"));
  EXPECT_EQ(*inner->get("k", 10s), "v");
  ASSERT_TRUE(inner->set("m", "1"));
  EXPECT_THAT(*inner->multi_get({"m", "k"}, 10s), ElementsAre("1", "v"));
  EXPECT_THAT(*inner->list_keys(), ElementsAre("k", "m"));
  EXPECT_EQ(*inner->num_keys(), 3);
}

// --- one round trip ---

std::uint64_t requests(RunningStore& store, Command command) {
  return store.counters().requests[static_cast<std::size_t>(command)];
}

TEST(StoreClient, GetsInOneRoundTripFromOurStore) {
  RunningStore store;
  const ClientPtr client = client_of(store.port());
  ASSERT_TRUE(client->set("a", "1"));
  ASSERT_TRUE(client->set("b", "2"));
  EXPECT_EQ(*client->get("a", 10s), "1");
  EXPECT_THAT(*client->multi_get({"a", "b"}, 10s), ElementsAre("1", "2"));
  EXPECT_FALSE(client->get("missing", 1ms));
  EXPECT_EQ(requests(store, Command::kFetch), 2u);
  EXPECT_EQ(requests(store, Command::kTryFetch), 1u);
  EXPECT_EQ(requests(store, Command::kWait) + requests(store, Command::kGet), 0u);
}

TEST(StoreClient, MultiGetWaitsForWhatIsMissing) {
  RunningStore store;
  std::thread setter([&] {
    const ClientPtr client = client_of(store.port());
    ASSERT_TRUE(eventually([&] { return store.counters().waiting == 1; }));
    ASSERT_TRUE(client->set("a", "1"));
    ASSERT_TRUE(client->set("b", "2"));
  });
  EXPECT_THAT(*client_of(store.port())->multi_get({"b", "a"}, 10s), ElementsAre("2", "1"));
  setter.join();
}

TEST(StoreClient, GetsFromOtherServersAsPyTorchDoes) {
  ScriptedServer server([](int socket, int) {
    shake_hands(socket);
    read_bytes(socket, 1 + 8 + 8 + 2);  // WAIT
    write_bytes(socket, "\0"sv);
    read_bytes(socket, request_of("k"));  // GET
    write_bytes(socket, string_reply("v"));
    read_to_the_end(socket);
  });
  EXPECT_EQ(*client_of(server.port())->get("k", 10s), "v");
}

TEST(StoreClient, AValueThatCrossesTheCancellingCounts) {
  ScriptedServer server([](int socket, int) {
    shake_hands(socket, kIdentity);
    read_bytes(socket, request_of("k"));  // FETCH, answered only after it is cancelled
    read_bytes(socket, 1);                // CANCEL_WAIT
    write_bytes(socket, "\0"s + string_reply("v") + "\x01");
    read_bytes(socket, 1);  // GETNUMKEYS
    write_bytes(socket, "\x07\0\0\0\0\0\0\0"sv);
    read_to_the_end(socket);
  });
  const ClientPtr client = client_of(server.port());
  EXPECT_EQ(*client->get("k", 10ms), "v");
  EXPECT_EQ(*client->num_keys(), 7);
}

TEST(StoreClient, AValueThatTheStoreMayNotSendIsSaidAndLeavesTheClientUsable) {
  RunningStore store({.state = {.reply_bytes = 100}});
  const ClientPtr client = client_of(store.port());
  ASSERT_TRUE(client->set("k", std::string(100, 'v')));
  const Result<std::string> value = client->get("k", 10s);
  ASSERT_FALSE(value);
  EXPECT_EQ(value.error().kind, ErrorKind::kResource);
  EXPECT_THAT(value.error().message(), HasSubstr("get 'k' at store 127.0.0.1:"));
  EXPECT_EQ(*client->num_keys(), 1);
}

// --- pipelining ---

TEST(StoreClient, TakesPipelinedValuesInAnyOrderAmongOtherCalls) {
  RunningStore store;
  const ClientPtr client = client_of(store.port());
  constexpr int kCount = 3000;
  for (int i = 0; i < kCount; ++i)
    ASSERT_TRUE(client->set(std::to_string(i), "v" + std::to_string(i)));
  std::vector<PendingGet> pending;
  for (int i = 0; i < kCount; ++i) {
    pending.push_back(client->get_async(std::to_string(i), 10s));
    if (i % 1000 == 500) {
      EXPECT_EQ(*client->add("n", 1), 1 + i / 1000);
    }
    if (i % 1000 == 700) {
      EXPECT_EQ(*client->get("7", 10s), "v7");
    }
  }
  for (int i = kCount - 1; i >= 0; i -= 2) {
    EXPECT_EQ(*std::move(pending[i]).take(), "v" + std::to_string(i));
  }
  pending.clear();  // drops the other half unread
  EXPECT_EQ(*std::move(*std::make_unique<PendingGet>(client->get_async("0", 10s))).take(), "v0");
  EXPECT_EQ(requests(store, Command::kTryFetch), kCount + 1u);
}

TEST(StoreClient, FlushSendsWhatIsPipelined) {
  RunningStore store;
  const ClientPtr client = client_of(store.port());
  PendingGet pending = client->get_async("k", 10s);
  client->flush();
  EXPECT_TRUE(eventually([&] { return requests(store, Command::kTryFetch) == 1; }));
}

// If the client does not read while it sends, both sides wait for each other for ever.
TEST(StoreClient, PipelinesMoreThanTheConnectionHolds) {
  RunningStore store;
  const ClientPtr client = client_of(store.port());
  const std::string value(4 << 20, 'v'), name(4000, 'k');
  ASSERT_TRUE(client->set(name, value));
  std::vector<PendingGet> pending;
  for (int i = 0; i < 16; ++i) pending.push_back(client->get_async(name, 10s));
  for (int i = 0; i < 4000; ++i) pending.push_back(client->get_async(name + "missing", 10s));
  for (int i = 0; i < 16; ++i) EXPECT_TRUE(*std::move(pending[i]).take() == value);
}

TEST(StoreClient, APipelinedGetWaitsForItsKeyAndKeepsItsDeadline) {
  RunningStore store;
  const ClientPtr client = client_of(store.port()), other = client_of(store.port());
  PendingGet late = client->get_async("late", 10s);
  PendingGet never = client->get_async("never", 20ms);
  PendingGet too_long = client->get_async(std::string(9000, 'k'), 10s);
  ASSERT_FALSE(*client->check({"late"})) << "both have been answered now";
  ASSERT_TRUE(other->set("late", "v"));
  EXPECT_EQ(*std::move(late).take(), "v");
  const Result<std::string> nothing = std::move(never).take();
  ASSERT_FALSE(nothing);
  EXPECT_EQ(nothing.error().kind, ErrorKind::kTimeout);
  EXPECT_THAT(
      nothing.error().message(),
      MatchesRegex("get 'never' at store .*: the key is not there \\(waited .* of 20 ms\\)"));
  const Result<std::string> refused = std::move(too_long).take();
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().kind, ErrorKind::kInvalidArgument);
  EXPECT_EQ(*client->num_keys(), 1);
}

TEST(StoreClient, AnAnswerToAPipelinedGetThatComesTooLateIsSkipped) {
  ScriptedServer server([](int socket, int) {
    shake_hands(socket, kIdentity);
    read_bytes(socket, 1 + 8 + 8 + 2);  // TRY_FETCH
    read_bytes(socket, 1);              // GETNUMKEYS
    write_bytes(socket, "\0"s + string_reply("late") + "\x07\0\0\0\0\0\0\0"s);
    read_to_the_end(socket);
  });
  const ClientPtr client = client_of(server.port());
  const Result<std::string> value = client->get_async("k", 20ms).take();
  ASSERT_FALSE(value);
  EXPECT_THAT(value.error().message(), HasSubstr("get 'k' at store"));
  EXPECT_EQ(value.error().kind, ErrorKind::kTimeout);
  EXPECT_EQ(*client->num_keys(), 7);
}

TEST(StoreClient, PipelinedGetsFromOtherServersAreCarriedOutOneAfterTheOther) {
  ScriptedServer server([](int socket, int) {
    shake_hands(socket);
    for (const char* value : {"b", "a"}) {
      read_bytes(socket, 1 + 8 + 8 + 2);  // WAIT
      write_bytes(socket, "\0"sv);
      read_bytes(socket, request_of("k"));  // GET
      write_bytes(socket, string_reply(value));
    }
    read_to_the_end(socket);
  });
  const ClientPtr client = client_of(server.port());
  PendingGet a = client->get_async("a", 10s), b = client->get_async("b", 10s);
  EXPECT_EQ(*std::move(b).take(), "b");
  EXPECT_EQ(*std::move(a).take(), "a");
}

// --- a connection that breaks ---

TEST(StoreClient, RepeatsAGetOnANewConnectionToTheSameStore) {
  ScriptedServer server([](int socket, int number) {
    shake_hands(socket, kIdentity);
    read_bytes(socket, request_of("k"));  // FETCH
    if (number == 0) return;              // closes
    write_bytes(socket, "\0"s + string_reply("v"));
    read_to_the_end(socket);
  });
  EXPECT_EQ(*client_of(server.port())->get("k", 10s), "v");
}

TEST(StoreClient, RepeatsPipelinedGetsOnANewConnection) {
  ScriptedServer server([](int socket, int number) {
    shake_hands(socket, kIdentity);
    if (number == 0) {
      read_bytes(socket, 2 * (1 + 8 + 8 + 2));  // TRY_FETCH
      write_bytes(socket, "\0"s + string_reply("a") + "\0"s);
      return;  // closes in the middle of the second answer
    }
    read_bytes(socket, request_of("b"));  // FETCH
    write_bytes(socket, "\0"s + string_reply("b"));
    read_to_the_end(socket);
  });
  const ClientPtr client = client_of(server.port());
  PendingGet a = client->get_async("a", 10s), b = client->get_async("b", 10s);
  EXPECT_EQ(*std::move(b).take(), "b");
  EXPECT_EQ(*std::move(a).take(), "a");
}

// This very request may be the reason why the store closes the connection.
TEST(StoreClient, RepeatsNoMoreThanOnce) {
  std::atomic<int> connections = 0;
  ScriptedServer server([&](int socket, int) {
    ++connections;
    shake_hands(socket, kIdentity);
    read_bytes(socket, request_of("k"));
  });
  const Result<std::string> value = client_of(server.port())->get("k", 10s);
  ASSERT_FALSE(value);
  EXPECT_EQ(value.error().kind, ErrorKind::kConnection);
  EXPECT_EQ(connections, 2);
}

TEST(StoreClient, WhatMustNotHappenTwiceIsNotRepeatedAndTheNextCallConnects) {
  const std::vector<std::pair<std::string, std::function<Error(StoreClient&)>>> calls{
      {"add 'k'", [](StoreClient& c) { return c.add("k", 1).error(); }},
      {"delete 'k'", [](StoreClient& c) { return c.delete_key("k").error(); }},
  };
  for (const auto& [what, call] : calls) {
    ScriptedServer server([](int socket, int number) {
      shake_hands(socket, kIdentity);
      read_bytes(socket, 1);
      if (number == 0) return;
      write_bytes(socket, "\x07\0\0\0\0\0\0\0"sv);
      read_to_the_end(socket);
    });
    const ClientPtr client = client_of(server.port());
    const Error error = call(*client);
    EXPECT_EQ(error.kind, ErrorKind::kConnection) << what;
    EXPECT_THAT(error.message(),
                MatchesRegex(what + " at store 127.0.0.1:[0-9]+: .*; it is not known whether it "
                                    "was done \\(waited .* of 10.0 s\\)"));
    EXPECT_EQ(*client->num_keys(), 7) << what;
  }
}

TEST(StoreClient, WhatWasNotSentYetIsSentOnANewConnection) {
  std::atomic<int> closed = 0;
  ScriptedServer server([&](int socket, int number) {
    shake_hands(socket, kIdentity);
    if (number == 0) {
      ::shutdown(socket, SHUT_RDWR);
      ++closed;
      return;
    }
    read_bytes(socket, request_of("k") + 8);  // ADD
    write_bytes(socket, "\x07\0\0\0\0\0\0\0"sv);
    read_to_the_end(socket);
  });
  const ClientPtr client = client_of(server.port());
  ASSERT_TRUE(eventually([&] { return closed == 1; }));
  EXPECT_EQ(*client->add("k", 7), 7);
}

TEST(StoreClient, ASetThatMayHaveBeenLostEndsTheClientByName) {
  std::atomic<int> connections = 0;
  ScriptedServer server([&](int socket, int) {
    ++connections;
    shake_hands(socket, kIdentity);
    read_bytes(socket, request_of("mine") + 8 + 1);  // SET
    read_bytes(socket, request_of("k"));             // FETCH
  });
  const ClientPtr client = client_of(server.port());
  ASSERT_TRUE(client->set("mine", "v"));
  const Result<std::string> value = client->get("k", 10s);
  ASSERT_FALSE(value);
  EXPECT_THAT(value.error().message(), HasSubstr("get 'k' at store"));
  EXPECT_THAT(value.error().message(), HasSubstr("set 'mine' before it may not have been done"));
  EXPECT_FALSE(client->num_keys());
  EXPECT_EQ(connections, 1);
}

TEST(StoreClient, GoesOnWithNoOtherStore) {
  for (const std::string& other : {std::string(kIdentityBytes, 'b'), std::string(kNoIdentity)}) {
    ScriptedServer server([&](int socket, int number) {
      shake_hands(socket, number == 0 ? kIdentity : other);
      if (number == 0) return;
      read_to_the_end(socket);
    });
    const ClientPtr client = client_of(server.port());
    const Result<std::string> value = client->get("k", 10s);
    ASSERT_FALSE(value);
    EXPECT_THAT(value.error().message(), HasSubstr("another store answered"));
    EXPECT_THAT(value.error().message(), HasSubstr("not " + kIdentity));
    EXPECT_EQ(client->add("n", 1).error().message(), value.error().message());
  }
}

TEST(StoreClient, DoesNotConnectAgainToOtherServers) {
  std::atomic<int> connections = 0;
  ScriptedServer server([&](int socket, int) {
    ++connections;
    shake_hands(socket);
  });
  const ClientPtr client = client_of(server.port());
  EXPECT_FALSE(client->get("k", 10s));
  EXPECT_FALSE(client->get("k", 10s));
  EXPECT_EQ(connections, 1);
}

TEST(StoreClient, ConnectsAgainOnlyAsLongAsTheCallMayTake) {
  ScriptedServer server([](int socket, int number) {
    if (number > 0) return read_to_the_end(socket);  // sends nothing
    shake_hands(socket, kIdentity);
  });
  const ClientPtr client = client_of(server.port());
  const Result<std::string> value = client->get("k", 50ms);
  ASSERT_FALSE(value);
  EXPECT_EQ(value.error().kind, ErrorKind::kConnection);
  EXPECT_THAT(
      value.error().message(),
      MatchesRegex("get 'k' at store .*: .*, then: .*no answer \\(waited [0-9]+ ms of 50 ms\\)"));
}

// --- waits that end ---

TEST(StoreClient, AWaitThatTimesOutNamesTheKeyAndLeavesTheClientUsable) {
  RunningStore store;
  const ClientPtr client = client_of(store.port());
  const std::string at = " at store 127.0.0.1:" + std::to_string(store.port());

  const Result<std::string> value = client->get("epoch", 20ms);
  ASSERT_FALSE(value);
  EXPECT_EQ(value.error().kind, ErrorKind::kTimeout);
  EXPECT_THAT(
      value.error().message(),
      MatchesRegex("get 'epoch'" + at + ": the key is not there \\(waited [0-9]+ ms of 20 ms\\)"));

  ASSERT_TRUE(client->set("a", "1"));
  const auto all = client->multi_get({"a", "b", "c"}, 20ms);
  ASSERT_FALSE(all);
  EXPECT_THAT(all.error().message(), HasSubstr("multi_get 'a' and 2 more" + at + ": not all keys"));

  EXPECT_FALSE(client->multi_get({"a", "b"}, 1ms));
  EXPECT_EQ(*client->add("n", 1), 1);
  EXPECT_EQ(*client->get("a", 10s), "1");
  EXPECT_EQ(store.counters().waiting, 0u);
}

TEST(StoreClient, AWaitWithoutTimeFindsWhatIsThere) {
  RunningStore store;
  const ClientPtr client = client_of(store.port());
  ASSERT_TRUE(client->set("k", "v"));
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(*client->get("k", 0s), "v");
    EXPECT_FALSE(client->get("missing", 0s));
  }
}

TEST(StoreClient, AnAnswerThatCrossesTheCancellingCounts) {
  ScriptedServer server([](int socket, int) {
    shake_hands(socket);
    read_bytes(socket, 1 + 8 + 8 + 2);  // WAIT, answered only after it is cancelled
    read_bytes(socket, 1);              // CANCEL_WAIT
    write_bytes(socket, "\x00\x01"sv);
    read_bytes(socket, request_of("k"));  // GET
    write_bytes(socket, string_reply("v"));
    read_bytes(socket, 1);  // GETNUMKEYS
    write_bytes(socket, "\x07\0\0\0\0\0\0\0"sv);
    read_to_the_end(socket);
  });
  const ClientPtr client = client_of(server.port());
  EXPECT_EQ(*client->get("k", 10ms), "v");
  EXPECT_EQ(*client->num_keys(), 7);
}

// --- errors that end a client ---

TEST(StoreClient, WhatIsTooLongIsRefusedBeforeItIsSent) {
  RunningStore store;
  const ClientPtr client = client_of(store.port());
  const Result<void> key = client->set(std::string(8192, 'k'), "");
  ASSERT_FALSE(key) << "with its slash it is one byte too long";
  EXPECT_EQ(key.error().kind, ErrorKind::kInvalidArgument);
  EXPECT_THAT(key.error().message(), HasSubstr("key of 8193 bytes (at most 8192)"));
  EXPECT_FALSE(client->set("k", std::string((8 << 20) + 1, 'v')));
  EXPECT_TRUE(client->set(std::string(8191, 'k'), ""));
  EXPECT_EQ(*client->num_keys(), 1);
}

TEST(StoreClient, AStoreThatEndsFinishesTheClient) {
  RunningStore store;
  const ClientPtr client = client_of(store.port());
  std::thread stopper([&] {
    ASSERT_TRUE(eventually([&] { return store.counters().waiting == 1; }));
    store.stop();
  });
  const Result<std::string> value = client->get("k", 10s);
  stopper.join();
  ASSERT_FALSE(value);
  EXPECT_EQ(value.error().kind, ErrorKind::kConnection);
  EXPECT_THAT(value.error().message(),
              MatchesRegex("get 'k' at store 127.0.0.1:" + std::to_string(store.port()) +
                           ": it closed the connection, then: Connection refused "
                           "\\(waited .* of 10.0 s\\)"));
  const Result<std::int64_t> again = client->add("n", 1);
  ASSERT_FALSE(again);
  EXPECT_EQ(again.error().message(), value.error().message());
  EXPECT_FALSE(client->set("k", "v"));
}

TEST(StoreClient, ASetAfterTheStoreHasEndedIsNotTakenForStored) {
  RunningStore store;
  const ClientPtr client = client_of(store.port());
  store.stop();
  const Result<void> set = client->set("k", "v");
  ASSERT_FALSE(set);
  EXPECT_EQ(set.error().kind, ErrorKind::kConnection);
}

TEST(StoreClient, AnAnswerThatDoesNotComeEndsAtTheTimeout) {
  ScriptedServer server([](int socket, int) {
    shake_hands(socket);
    read_to_the_end(socket);
  });
  auto client = StoreClient::connect({.address = {"127.0.0.1", server.port()}, .timeout = 20ms});
  ASSERT_TRUE(client);
  const Result<std::int64_t> sum = (*client)->add("n", 1);
  ASSERT_FALSE(sum);
  EXPECT_EQ(sum.error().kind, ErrorKind::kTimeout);
  EXPECT_THAT(sum.error().message(), HasSubstr("add 'n' at store"));
  EXPECT_FALSE((*client)->num_keys()) << "a late answer would be taken for this one's";
}

struct Nonsense {
  const char* name;
  std::string answer;
  std::function<bool(StoreClient&)> call;
};

TEST(StoreClient, NonsenseFinishesTheClient) {
  const std::vector<Nonsense> cases{
      {"wait", "\x05", [](StoreClient& c) { return c.get("k", 10s).has_value(); }},
      {"length", "\0"s + std::string(8, '\x7F'),
       [](StoreClient& c) { return c.get("k", 10s).has_value(); }},
  };
  for (const Nonsense& one : cases) {
    ScriptedServer server([&](int socket, int) {
      shake_hands(socket);
      read_bytes(socket, 1);
      write_bytes(socket, one.answer);
      read_to_the_end(socket);
    });
    const ClientPtr client = client_of(server.port());
    EXPECT_FALSE(one.call(*client)) << one.name;
    const Result<std::int64_t> next = client->num_keys();
    ASSERT_FALSE(next);
    EXPECT_EQ(next.error().kind, ErrorKind::kProtocol) << one.name;
  }
}

// --- connecting ---

TEST(StoreClient, ConnectsByNameAndKnowsItsOwnAddress) {
  if (!testing_support::host_has_localhost()) GTEST_SKIP() << testing_support::kNoLocalhost;
  RunningStore store;
  const auto client =
      StoreClient::connect({.address = {"localhost", store.port()}, .connect_timeout = 10s});
  ASSERT_TRUE(client) << client.error().message();
  EXPECT_EQ((*client)->local_address(), "127.0.0.1");
}

TEST(StoreClient, ConnectsOverIpv6) {
  if (!testing_support::host_has_ipv6()) GTEST_SKIP() << "this machine has no IPv6";
  RunningStore store({}, RunningStore::Start::kNow, {"::1", 0});
  const auto client =
      StoreClient::connect({.address = {"::1", store.port()}, .connect_timeout = 10s});
  ASSERT_TRUE(client) << client.error().message();
  EXPECT_EQ((*client)->local_address(), "::1");
  EXPECT_EQ(*(*client)->add("n", 1), 1);
}

TEST(StoreClient, TriesAgainUntilTheStoreIsUp) {
  const HeldPort port;
  std::thread connecting([&] { EXPECT_EQ(*client_of(port.port())->add("n", 1), 1); });
  testing_support::let_pass(50ms);  // meanwhile the client is refused
  RunningStore store({}, RunningStore::Start::kNow, {"127.0.0.1", port.port()});
  connecting.join();
}

TEST(StoreClient, TriesOnceWhereItIsToldTo) {
  const HeldPort port;
  const TimePoint start = BootClock::now();
  const auto client = StoreClient::connect(
      {.address = {"127.0.0.1", port.port()}, .connect_timeout = 20s, .tries_once = true});
  ASSERT_FALSE(client);
  EXPECT_EQ(client.error().kind, ErrorKind::kConnection);
  EXPECT_LT(BootClock::now() - start, 10s);
}

TEST(StoreClient, TriesAgainWhenTheConnectionBreaksBeforeTheHandshakeIsAnswered) {
  std::atomic<int> connections = 0;
  ScriptedServer server([&](int socket, int number) {
    ++connections;
    if (number < 3) return;  // closes
    shake_hands(socket);
    read_to_the_end(socket);
  });
  client_of(server.port());
  EXPECT_EQ(connections, 4);
}

TEST(StoreClient, SaysHowLongItTriedAndWhyItFailed) {
  const HeldPort port;
  const auto client =
      StoreClient::connect({.address = {"127.0.0.1", port.port()}, .connect_timeout = 50ms});
  ASSERT_FALSE(client);
  EXPECT_EQ(client.error().kind, ErrorKind::kConnection);
  EXPECT_THAT(client.error().message(),
              MatchesRegex("connect to store " + port.endpoint() +
                           ": Connection refused \\(waited [0-9]+ ms of 50 ms\\)"));
}

TEST(StoreClient, AServerThatAcceptsAndStaysSilentEndsAtTheDeadline) {
  const Result<Listener> silent = listen_tcp({.host = "127.0.0.1", .port = 0});
  const auto client = StoreClient::connect(
      {.address = {"127.0.0.1", silent->address.port}, .connect_timeout = 50ms});
  ASSERT_FALSE(client);
  EXPECT_THAT(client.error().message(),
              ContainsRegex("handshake: no answer \\(waited [0-9]+ ms of 50 ms\\)"));
}

TEST(StoreClient, WhatAnswersButIsNoStoreIsNotTriedAgain) {
  std::atomic<int> connections = 0;
  ScriptedServer server([&](int socket, int) {
    ++connections;
    read_bytes(socket, 6);
    write_bytes(socket, "HTTP/1.1"sv);
    read_to_the_end(socket);
  });
  const auto client =
      StoreClient::connect({.address = {"127.0.0.1", server.port()}, .connect_timeout = 10s});
  ASSERT_FALSE(client);
  EXPECT_EQ(client.error().kind, ErrorKind::kProtocol);
  EXPECT_EQ(connections, 1);
}

TEST(StoreClient, RefusesToConnectToNothing) {
  for (const StoreClientOptions& options :
       {StoreClientOptions{.address = {"", 1}}, StoreClientOptions{.address = {"a", 0}}}) {
    const auto client = StoreClient::connect(options);
    ASSERT_FALSE(client);
    EXPECT_EQ(client.error().kind, ErrorKind::kInvalidArgument);
  }
}

}  // namespace
}  // namespace ddprun
