#include "rendezvous/store/server.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <filesystem>
#include <fstream>

#include "tests/support/child_process.h"
#include "tests/support/raw_store_client.h"
#include "tests/support/running_store.h"

namespace ddprun {
namespace {

using namespace std::literals;
using testing::ElementsAre;
using testing::HasSubstr;
using testing_support::eventually;
using testing_support::handshake;
using testing_support::i64;
using testing_support::RawTcpClient;
using testing_support::request;
using testing_support::RunningStore;
using testing_support::string_reply;
using Client = testing_support::RawStoreClient;

std::size_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  std::size_t all = 0, resident = 0;
  file >> all >> resident;
  return resident * 4096;
}

TEST(StoreServer, AnswersHandshakePingAndRequestInOneSegment) {
  RunningStore store;
  RawTcpClient client(store.port());
  client.send(handshake() + request(Command::kPing, {}, 7) + request(Command::kSet, {"k", "v"}) +
              request(Command::kGet, {"k"}));
  EXPECT_EQ(client.receive(4 + 9), "\x07\0\0\0"s + string_reply("v"));
}

TEST(StoreServer, AnswersRequestsThatComeByteByByte) {
  RunningStore store;
  RawTcpClient client(store.port());
  for (const char byte :
       handshake() + request(Command::kSet, {"k", "v"}) + request(Command::kGet, {"k"})) {
    client.send(std::string_view(&byte, 1));
  }
  EXPECT_EQ(client.receive(9), string_reply("v"));
}

TEST(StoreServer, AnswersOneWaitFromAnothersSet) {
  RunningStore store;
  Client one(store), other(store);
  one.send(request(Command::kWait, {"k"}));
  ASSERT_TRUE(eventually([&] { return store.counters().waiting == 1; }));
  EXPECT_FALSE(one.has_bytes());
  other.send(request(Command::kSet, {"k", "v"}));
  EXPECT_EQ(one.receive(1), "\0"s);
  EXPECT_EQ(store.counters().waiting, 0u);
}

TEST(StoreServer, HalfARequestHoldsUpNobodyElse) {
  RunningStore store;
  std::vector<std::unique_ptr<Client>> hanging;
  const std::string set = request(Command::kSet, {"half", std::string(1000, 'v')});
  for (int i = 0; i < 50; ++i) {
    hanging.push_back(std::make_unique<Client>(store));
    hanging.back()->send(set.substr(0, set.size() / 2));
  }
  for (int i = 1; i <= 100; ++i) {
    Client client(store);
    EXPECT_EQ(client.add("n", 1), i);
  }
  hanging[0]->send(set.substr(set.size() / 2) + request(Command::kGet, {"half"}));
  EXPECT_EQ(hanging[0]->receive(1008).size(), 1008u);
}

TEST(StoreServer, ServesHundredsOfClientsAtOnce) {
  RunningStore store;
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < 300; ++i) {
    clients.push_back(std::make_unique<Client>(store));
    clients.back()->send(request(Command::kWait, {"go"}));
  }
  ASSERT_TRUE(eventually([&] { return store.counters().waiting == clients.size(); }));
  Client(store).add("go", 1);
  for (const auto& client : clients) EXPECT_EQ(client->receive(1), "\0"s);
  EXPECT_EQ(store.counters().waiting, 0u);
}

Duration cpu_time_of_this_process() {
  timespec used{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
  return std::chrono::seconds(used.tv_sec) + std::chrono::nanoseconds(used.tv_nsec);
}

TEST(StoreServer, SleepsAgainSoonAfterARequest) {
  RunningStore store;
  EXPECT_EQ(Client(store).add("n", 1), 1);
  EXPECT_TRUE(eventually([] {
    const Duration before = cpu_time_of_this_process();
    testing_support::let_pass(std::chrono::milliseconds(100));
    return cpu_time_of_this_process() - before < std::chrono::milliseconds(10);
  }));
}

// --- errors that end only their own connection ---

struct BadBytes {
  const char* name;
  std::string bytes;
  std::string reason;
};

TEST(StoreServer, BadBytesCloseTheirConnectionAndNoOther) {
  const std::vector<BadBytes> cases{
      {"wrong magic", "\x00\x01\x02\x03\x04"s, "the handshake has 0x04030201"},
      {"no handshake", request(Command::kPing, {}, 7), "the first byte is 0x0d"},
      {"http", "GET / HTTP/1.1\r\n\r\n", "the first byte is 0x47"},
      {"second handshake", handshake() + handshake(), "a second handshake"},
      {"opcode", handshake() + "\xFF", "opcode 255 is not known"},
      {"no number", handshake() + request(Command::kAdd, {"text"}, 1),
       "ADD: the value of the key is not a number"},
  };
  RunningStore store;
  Client bystander(store);
  bystander.send(request(Command::kSet, {"text", "abc"}));
  std::int64_t sum = 0;
  for (const BadBytes& one : cases) {
    const std::size_t lines = store.log_lines().size();
    RawTcpClient bad(store.port());
    bad.send(one.bytes);
    EXPECT_TRUE(bad.is_closed()) << one.name;
    EXPECT_EQ(bystander.add("n", 1), ++sum) << one.name;
    const std::vector<std::string> log = store.log_lines();
    ASSERT_EQ(log.size(), lines + 1) << one.name;
    EXPECT_THAT(log.back(), HasSubstr("closed the connection of 127.0.0.1:"));
    EXPECT_THAT(log.back(), HasSubstr(one.reason)) << one.name;
  }
  EXPECT_EQ(store.counters().refusals[Refusal::kBadRequest], cases.size());
  EXPECT_EQ(store.counters().connections, 1u);
}

TEST(StoreServer, LogsRefusalsAtALimitedRate) {
  RunningStore store;
  for (int i = 0; i < 100; ++i) {
    RawTcpClient bad(store.port());
    bad.send("nonsense");
    EXPECT_TRUE(bad.is_closed());
  }
  EXPECT_EQ(store.log_lines().size(), 10u);
  EXPECT_EQ(store.counters().refusals[Refusal::kBadRequest], 100u);
}

TEST(StoreServer, RequestsBeforeABadOneAreAnswered) {
  RunningStore store;
  Client client(store);
  client.send(request(Command::kAdd, {"n"}, 5) + "\xFF");
  EXPECT_EQ(client.receive(100), i64(5));
}

TEST(StoreServer, MemoryStaysFlatWhenLargeValuesAreAnnouncedAndDoNotCome) {
  RunningStore store;
  std::string announced = request(Command::kSet, {"k", std::string(8 << 20, 'v')});
  announced.resize(100);
  Client warm_up(store);
  warm_up.add("n", 1);
  const std::size_t before = resident_bytes();
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < 100; ++i) {
    clients.push_back(std::make_unique<Client>(store));
    clients.back()->send(announced);
  }
  ASSERT_TRUE(eventually([&] { return store.counters().bytes_received > 100 * announced.size(); }));
  EXPECT_LT(resident_bytes(), before + (16 << 20)) << "800 MB were announced";
}

TEST(StoreServer, AReaderThatNeverReadsIsNotServedAndHarmsNobody) {
  RunningStore store;
  Client slow(store), other(store);
  slow.send(request(Command::kSet, {"big", std::string(1 << 20, 'v')}));
  other.add("n", 1);
  const std::size_t before = resident_bytes();
  std::string many;
  constexpr int kGets = 1000;
  for (int i = 0; i < kGets; ++i) many += request(Command::kGet, {"big"});
  slow.send(many);
  // The sockets hold a few megabytes. After that only the other client gets answers.
  std::uint64_t before_the_others = 0;
  ASSERT_TRUE(eventually([&] {
    const std::uint64_t last = before_the_others;
    for (int i = 0; i < 100; ++i) other.add("n", 1);
    const StoreCounters now = store.counters();
    before_the_others = now.bytes_sent - 8 * now.requests[static_cast<std::size_t>(Command::kAdd)];
    return before_the_others > 0 && before_the_others == last;
  }));
  EXPECT_LT(store.counters().requests[static_cast<std::size_t>(Command::kGet)], 100u);
  EXPECT_LT(resident_bytes(), before + (32 << 20)) << "1 GB was asked for";
  EXPECT_EQ(store.counters().connections, 2u);

  slow.close();
  EXPECT_TRUE(eventually([&] { return store.counters().connections == 1; }));
}

TEST(StoreServer, AReaderThatReadsLateGetsEveryByteInOrder) {
  RunningStore store;
  Client client(store);
  const std::size_t size = 4 << 20;
  for (const char letter : "abc"s) {
    client.send(request(Command::kSet, {std::string(1, letter), std::string(size, letter)}));
  }
  client.send(request(Command::kGet, {"a"}) + request(Command::kGet, {"b"}) +
              request(Command::kGet, {"c"}) + request(Command::kAdd, {"n"}, 1));
  ASSERT_TRUE(eventually([&] { return store.counters().bytes_sent > 0; }));
  for (const char letter : "abc"s) {
    const std::string got = client.receive(8 + size);
    ASSERT_EQ(got.size(), 8 + size);
    EXPECT_EQ(got.find_first_not_of(letter, 8), std::string::npos);
  }
  EXPECT_EQ(client.receive(8), i64(1));
}

TEST(StoreServer, AGreedyReaderGetsEverythingAndDoesNotKeepTheOthersWaiting) {
  RunningStore store;
  Client greedy(store), other(store);
  greedy.send(request(Command::kSet, {"big", std::string(1 << 20, 'v')}));
  std::string many;
  constexpr int kGets = 50;
  for (int i = 0; i < kGets; ++i) many += request(Command::kGet, {"big"});
  std::thread reader([&] {
    greedy.send(many);
    EXPECT_EQ(greedy.receive(kGets * (8 + (1 << 20))).size(), kGets * (8 + (std::size_t{1} << 20)));
  });
  const auto gets = [&] {
    return store.counters().requests[static_cast<std::size_t>(Command::kGet)];
  };
  EXPECT_TRUE(eventually([&] { return gets() > 0; }));
  int between = 0;
  EXPECT_TRUE(eventually([&] {
    between += other.add("n", 1) > 0;
    return gets() == kGets;
  }));
  reader.join();
  EXPECT_GT(between, 0) << "nobody was served until all of it was done";
}

TEST(StoreServer, AClientThatAsksForALotAtOnceIsServedInTurnWithTheOthers) {
  // These requests fit into one read, but their replies exceed one turn.
  constexpr std::size_t kGets = 150;
  RunningStore store({}, RunningStore::Start::kLater);
  std::string much = handshake() + request(Command::kSet, {"big", std::string(2000, 'v')});
  for (std::size_t i = 0; i < kGets; ++i) much += request(Command::kGet, {"big"});
  RawTcpClient greedy(store.port(), "127.0.0.1", 4 << 20), modest(store.port());
  greedy.send(much + request(Command::kAdd, {"n"}, 1));
  modest.send(handshake() + request(Command::kAdd, {"n"}, 1));
  store.start();
  EXPECT_EQ(modest.receive(8), i64(1)) << "it came second, but has asked for less";
  EXPECT_EQ(greedy.receive(kGets * 2008 + 8).substr(kGets * 2008), i64(2));
}

// The keys need more than one slice. Their bytes fit into a socket whose peer does not read.
constexpr std::size_t kManyKeys = 5000;

std::string long_request(Command command) {
  std::vector<std::string> keys;
  for (std::size_t i = 0; i < kManyKeys; ++i) keys.push_back("k" + std::to_string(i));
  std::vector<std::string_view> strings;
  for (const std::string& key : keys) {
    strings.push_back(key);
    if (command == Command::kMultiSet) strings.emplace_back("v");
  }
  return request(command, strings);
}

TEST(StoreServer, OthersAreServedBetweenTheSlicesOfALongRequest) {
  for (const Command command :
       {Command::kMultiSet, Command::kCheck, Command::kWait, Command::kMultiGet}) {
    RunningStore store({}, RunningStore::Start::kLater);
    RawTcpClient greedy(store.port(), "127.0.0.1", 4 << 20), modest(store.port());
    greedy.send(handshake() + long_request(command) + request(Command::kAdd, {"n"}, 1));
    modest.send(handshake() + request(Command::kAdd, {"n"}, 1));
    store.start();
    EXPECT_EQ(modest.receive(8), i64(1)) << rule_of(command).name;
    const std::size_t reply_bytes = command == Command::kMultiGet ? 8 * kManyKeys
                                    : command == Command::kCheck  ? 1
                                                                  : 0;
    EXPECT_EQ(greedy.receive(reply_bytes + 8).substr(reply_bytes), i64(2)) << rule_of(command).name;
  }
}

TEST(StoreServer, AMultiSetIsAppliedWholeAlthoughItsClientLeaves) {
  RunningStore store;
  Client client(store);
  client.send(request(Command::kWait, {"k0"}) + long_request(Command::kMultiSet));
  client.close();
  EXPECT_TRUE(eventually([&] { return store.counters().keys == kManyKeys; }));
  EXPECT_TRUE(eventually([&] { return store.counters().connections == 0; }));
  EXPECT_EQ(store.counters().held_bytes,
            kManyKeys * (KvState::kEntryBytes + 2) + 10 + 90 * 2 + 900 * 3 + 4000 * 4);
}

TEST(StoreServer, ALongWaitEndsWithItsConnectionAndGivesItsBytesBack) {
  RunningStore store;
  Client client(store), other(store);
  client.send(long_request(Command::kWait));
  ASSERT_TRUE(eventually([&] { return store.counters().waiting == 1; }));
  client.close();
  EXPECT_TRUE(eventually([&] { return store.counters().held_bytes == 0; }));
  EXPECT_EQ(store.counters().waiting, 0u);
  EXPECT_EQ(other.add("n", 1), 1);
}

// --- limits ---

struct PastALimit {
  Refusal::Kind kind;
  std::string bytes;
  std::string reason;
};

TEST(StoreServer, PastALimitOnlyThatConnectionIsClosedWithALineAndACount) {
  const std::string hello = handshake();
  RunningStore store(
      {.request = {.key_bytes = 10, .value_bytes = 1000, .keys = 3, .request_bytes = 1500},
       .state = {.reply_bytes = 1100, .held_bytes = 1800}});
  const std::string large(600, 'v');
  const std::vector<PastALimit> cases{
      {Refusal::kRequestLimit, hello + request(Command::kGet, {"a longer key"}),
       "GET: key of 12 bytes (at most 10)"},
      {Refusal::kRequestLimit, hello + request(Command::kSet, {"k", std::string(1001, 'v')}),
       "SET: value of 1001 bytes (at most 1000)"},
      {Refusal::kRequestLimit, hello + request(Command::kCheck, {"a", "b", "c", "d"}),
       "CHECK: 4 keys (at most 3)"},
      {Refusal::kRequestLimit,
       hello + request(Command::kMultiSet, {"a", large, "b", large, "c", large}),
       "MULTI_SET: request of 1860 bytes (at most 1500)"},
      {Refusal::kReplyLimit,
       hello + request(Command::kSet, {"k", large}) + request(Command::kAppend, {"k", large}) +
           request(Command::kGet, {"k"}),
       "GET: a reply of 1208 bytes (at most 1100)"},
      {Refusal::kHeldLimit, hello + request(Command::kAppend, {"k", large}),
       "APPEND: the store holds "},
  };
  Client bystander(store);
  std::int64_t sum = 0;
  std::array<std::uint64_t, Refusal::kKinds> counted{};
  for (const PastALimit& one : cases) {
    const std::size_t lines = store.log_lines().size();
    RawTcpClient bad(store.port());
    bad.send(one.bytes);
    EXPECT_TRUE(bad.is_closed()) << one.reason;
    EXPECT_EQ(bystander.add("n", 1), ++sum) << one.reason;
    const std::vector<std::string> log = store.log_lines();
    ASSERT_EQ(log.size(), lines + 1) << one.reason;
    EXPECT_THAT(log.back(), HasSubstr("closed the connection of 127.0.0.1:"));
    EXPECT_THAT(log.back(), HasSubstr(one.reason));
    ++counted[one.kind];
    EXPECT_EQ(store.counters().refusals, counted) << one.reason;
  }
  bystander.send(request(Command::kSet, {"k", large}));
  EXPECT_EQ(bystander.ask(request(Command::kGet, {"k"}), 608), string_reply(large));
}

TEST(StoreServer, BytesThatAreGivenBackCanBeUsedAgain) {
  RunningStore store({.state = {.held_bytes = 2000}});
  Client client(store);
  const std::string large(1000, 'v');
  for (int i = 0; i < 10; ++i) {
    client.send(request(Command::kSet, {"k", large}));
    EXPECT_EQ(client.ask(request(Command::kDeleteKey, {"k"}), 8), i64(1)) << i;
  }
  EXPECT_EQ(store.counters().held_bytes, 0u);
  client.send(request(Command::kWait, {"missing"}));
  ASSERT_TRUE(eventually([&] { return store.counters().held_bytes > 0; }));
  client.close();
  EXPECT_TRUE(eventually([&] { return store.counters().held_bytes == 0; }));
}

TEST(StoreServer, PastTheMostConnectionsNewOnesAreClosedUntilOthersLeave) {
  RunningStore store({.connections = 2});
  Client one(store), two(store);
  EXPECT_EQ(one.add("n", 1) + two.add("n", 1), 3);
  Client three(store);
  EXPECT_TRUE(three.is_closed());
  EXPECT_THAT(store.log_lines(), ElementsAre(HasSubstr("at most 2 connections are served")));
  EXPECT_EQ(store.counters().refusals[Refusal::kTooManyConnections], 1u);
  EXPECT_EQ(one.add("n", 1) + two.add("n", 1), 7);
  two.close();
  ASSERT_TRUE(eventually([&] { return store.counters().connections == 1; }));
  Client four(store);
  EXPECT_EQ(four.add("n", 1), 5);
}

// --- ends ---

TEST(StoreServer, AnswersAfterThePeerHasClosedItsSendingSide) {
  RunningStore store;
  Client client(store);
  const std::string value(8 << 20, 'v');
  client.send(request(Command::kSet, {"k", value}) + request(Command::kGet, {"k"}));
  client.close_sending_side();
  EXPECT_EQ(client.receive(8 + value.size()), string_reply(value));
  EXPECT_TRUE(client.is_closed());
}

TEST(StoreServer, AWaitEndsWithItsConnection) {
  RunningStore store;
  Client gone(store), next(store), pusher(store);
  gone.send(request(Command::kWait, {"q"}));
  ASSERT_TRUE(eventually([&] { return store.counters().waiting == 1; }));
  next.send(request(Command::kWait, {"q"}));
  ASSERT_TRUE(eventually([&] { return store.counters().waiting == 2; }));
  gone.close();
  ASSERT_TRUE(eventually([&] { return store.counters().waiting == 1; }));
  pusher.send(request(Command::kQueuePush, {"q", "item"}));
  EXPECT_EQ(next.receive(1), "\0"s);
}

TEST(StoreServer, NothingIsAcceptedBeforeStart) {
  RunningStore store({}, RunningStore::Start::kLater);
  Client early(store);
  early.send(request(Command::kPing, {}, 7));
  EXPECT_EQ(store.counters().accepted, 0u);
  EXPECT_FALSE(early.has_bytes());
  store.start();
  EXPECT_EQ(early.receive(4), "\x07\0\0\0"s);
}

TEST(StoreServer, StopClosesEveryConnectionAtOnce) {
  RunningStore store;
  Client idle(store), waiting(store), half(store);
  waiting.send(request(Command::kWait, {"k"}));
  half.send("\x01");
  idle.add("n", 1);
  ASSERT_TRUE(eventually([&] { return store.counters().waiting == 1; }));
  store.stop();
  EXPECT_TRUE(idle.is_closed());
  EXPECT_TRUE(waiting.is_closed());
  EXPECT_TRUE(half.is_closed());
  EXPECT_EQ(store.counters().connections, 0u);
  EXPECT_FALSE(testing_support::can_connect(store.port()));
}

TEST(StoreServer, MayGoWithoutRunningTheLoopAgain) {
  boost::asio::io_context io(1);
  Logger log("test", [](std::string_view) {});
  Result<Listener> listener = listen_tcp({.host = "127.0.0.1", .port = 0});
  {
    StoreServer server(io, log, std::move(listener->socket));
    server.start();
    RawTcpClient client(listener->address.port);
    client.send(handshake());
    while (server.counters().connections == 0) io.run_one_for(10s);
  }
  io.run_for(10s);
  EXPECT_TRUE(io.stopped()) << "nothing is left to do";
}

// --- connections that another listener has accepted ---

TEST(StoreServer, AdoptsAConnectionWithTheBytesThatWereRead) {
  RunningStore store;
  Result<Listener> listener = listen_tcp({.host = "127.0.0.1", .port = 0});
  const std::string bytes =
      handshake() + request(Command::kPing, {}, 7) + request(Command::kAdd, {"n"}, 5);
  for (std::size_t cut = 1; cut <= bytes.size(); cut += 8) {
    RawTcpClient one(listener->address.port);
    one.send(bytes);
    store.on_thread([&] {
      boost::asio::ip::tcp::acceptor acceptor(store.io(), boost::asio::ip::tcp::v4(),
                                              dup(listener->socket.get()));
      boost::asio::ip::tcp::socket socket = acceptor.accept();
      std::string first(cut, '\0');
      boost::asio::read(socket, boost::asio::buffer(first));
      store.server().adopt(std::move(socket), first);
    });
    EXPECT_EQ(one.receive(12).substr(0, 4), "\x07\0\0\0"s) << cut;
  }
  EXPECT_EQ(Client(store).add("n", 0) % 5, 0);
}

// --- sockets ---

struct SocketFlags {
  int sockets = 0;
  int inherited = 0;  // by programs that this process starts
  int delayed = 0;    // Nagle's algorithm is on
};

// Counts the TCP sockets of this process whose local port is `port`.
SocketFlags sockets_at(std::uint16_t port) {
  SocketFlags flags;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int fd = std::stoi(entry.path().filename());
    if (local_address_of(fd).port() != port || peer_address_of(fd).size == 0) continue;
    ++flags.sockets;
    if (!(fcntl(fd, F_GETFD) & FD_CLOEXEC)) ++flags.inherited;
    int no_delay = 0;
    socklen_t size = sizeof no_delay;
    getsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &no_delay, &size);
    if (!no_delay) ++flags.delayed;
  }
  return flags;
}

TEST(StoreServer, ItsSocketsAreUndelayedAndClosedOnExec) {
  RunningStore store;
  Client one(store), other(store);
  one.add("n", 1);
  other.add("n", 1);
  const SocketFlags flags = sockets_at(store.port());
  EXPECT_EQ(flags.sockets, 2);
  EXPECT_EQ(flags.inherited, 0);
  EXPECT_EQ(flags.delayed, 0);
}

TEST(StoreServer, CountsWhatItDoes) {
  RunningStore store;
  Client client(store);
  client.add("n", 1);
  client.add("n", 1);
  const StoreCounters counters = store.counters();
  EXPECT_EQ(counters.accepted, 1u);
  EXPECT_EQ(counters.connections, 1u);
  EXPECT_EQ(counters.keys, 1u);
  EXPECT_EQ(counters.requests[static_cast<std::size_t>(Command::kAdd)], 2u);
  EXPECT_EQ(counters.bytes_received, 5u + 2 * (1 + 8 + 1 + 8));
  EXPECT_EQ(counters.bytes_sent, 16u);
}

TEST(StoreServer, TellsOfEachSetOfTheKeyThatIsWatchedAndOfNoOther) {
  std::atomic<int> times = 0;
  StoreServerOptions options;
  options.watched_key = "/watched";
  options.watched_key_set = [&] { ++times; };
  RunningStore store(options);
  Client client(store);
  client.send(request(Command::kSet, {"/watched", "1"}) + request(Command::kSet, {"/other", "1"}) +
              request(Command::kSet, {"/watched", "1"}) + request(Command::kGet, {"/watched"}));
  EXPECT_EQ(client.receive(9), string_reply("1"));
  EXPECT_EQ(times, 2);
}

}  // namespace
}  // namespace ddprun
