// Tests the rendezvous service with TLS on a real socket: which clients are admitted, and
// unauthenticated peers of all kinds.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include "rendezvous/auth/core/handshake_turns.h"
#include "rendezvous/service/server.h"
#include "rendezvous/store/server.h"
#include "tests/support/certificates.h"
#include "tests/support/control_frame.h"
#include "tests/support/eventually.h"
#include "tests/support/hello_of.h"
#include "tests/support/http_get.h"
#include "tests/support/raw_store_client.h"
#include "tests/support/raw_tls_client.h"
#include "tests/support/running_service.h"
#include "tests/support/sanitized.h"
#include "tests/support/temporary_directory.h"

namespace ddprun {
namespace {

using testing::HasSubstr;
using testing_support::Authority;
using testing_support::await;
using testing_support::eventually;
using testing_support::hello_of;
using testing_support::http_get;
using testing_support::IssuedFiles;
using testing_support::next_handshake;
using testing_support::RawTcpClient;
using testing_support::RawTlsClient;
using testing_support::RunningService;
using testing_support::say;
using testing_support::TemporaryDirectory;

constexpr const char* kKey = "0123456789abcdef";
constexpr std::size_t kTurns = 100;  // turns of a service: few, so that a test can soon take all

class ServerWithTls : public testing::Test {
 protected:
  ServerWithTls() { set_tls({.cert = own_.cert, .key = own_.key, .ca = {}}); }

  void set_tls(const TlsFiles& files) { service_.set_tls(files); }
  void demand_certificates() {
    set_tls({.cert = own_.cert, .key = own_.key, .ca = ours_.ca_file()});
  }
  void set_key() { service_.set_keys(kKey); }
  TlsContextPtr agent(const IssuedFiles& own = {}) const {
    return TlsContext::for_agent({.cert = own.cert, .key = own.key, .ca = ours_.ca_file()})
        ->context;
  }

  bool has_logged(const std::string& text) {
    return eventually([&] { return service_.has_logged(text); });
  }
  int status_over_tls(const std::string& path, const std::string& authorization = "") {
    RawTlsClient client(service_.port(), agent());
    const int status = http_get(client, path, authorization).status;
    EXPECT_TRUE(client.channel().is_ended()) << "the end is said, not cut off";
    return status;
  }

  const TemporaryDirectory directory_;
  const Authority ours_{directory_.path(), "ours"};
  const Authority theirs_{directory_.path(), "theirs"};
  const IssuedFiles own_ = ours_.issue("service");
  RunningService service_{
      {.hello_timeout = std::chrono::seconds(5), .handshake_turns = kTurns, .service_id = "s"}};
};

TEST_F(ServerWithTls, AnAgentJoinsThroughItByteByByteToo) {
  for (const std::size_t pieces_of : {std::size_t{0}, std::size_t{1}}) {
    RawTlsClient client(service_.port(), agent(), pieces_of);
    ASSERT_TRUE(client.is_open()) << client.error();
    say(client, hello_of("job" + std::to_string(pieces_of), "a"));
    EXPECT_TRUE(await<Assignment>(client)) << client.error();
  }
}

// A verdict with the last output of all workers is nearly as large as the largest frame.
TEST_F(ServerWithTls, LargeFramesPassBothWays) {
  RawTlsClient client(service_.port(), agent());
  say(client, hello_of("large", "a"));
  const auto assignment = await<Assignment>(client);
  ASSERT_TRUE(assignment);
  AgentStatus status{.phase = AgentPhase::kIdle, .generation = assignment->generation};
  for (int i = 0; i < 64; ++i) {
    WorkerEnd end{.kind = EndKind::kSignaled, .code = 11};
    end.message = std::string(500, 'm');
    end.stderr_tail.assign(20, std::string(400, 'x'));
    status.ends.push_back(std::move(end));
  }
  const AgentMessage message(status);
  ASSERT_GT(encode(message)->size(), 100000u);
  say(client, message);
  const auto end = await<End>(client);
  ASSERT_TRUE(end) << client.error();
  EXPECT_EQ(end->verdict.ends.front().stderr_tail.size(), 20u);
}

TEST_F(ServerWithTls, AnAgentWithoutItIsToldWhatToDo) {
  for (const auto& bytes :
       {*encode(AgentMessage(hello_of("job", "a"))),
        *encode(AgentHandshakeMessage(Knock{.version = "v", .job = "job", .nonce = "n"}))}) {
    RawTcpClient plain(service_.port());
    plain.send(bytes);
    const auto refused = await<Refused>(plain);
    ASSERT_TRUE(refused);
    EXPECT_THAT(refused->reason, HasSubstr("requires TLS: give this node --rdzv-tls-ca"));
    EXPECT_TRUE(plain.is_closed());
  }
  service_.on_thread([&] { EXPECT_TRUE(service_.server().jobs().jobs().empty()); });
}

TEST_F(ServerWithTls, WhereItIsMutualNobodyGetsInWithoutACertificate) {
  demand_certificates();
  for (const IssuedFiles& other : {IssuedFiles{}, theirs_.issue("other")}) {
    RawTlsClient client(service_.port(), agent(other));
    EXPECT_TRUE(client.is_closed());
    EXPECT_THAT(client.error(), HasSubstr("the peer sent: "));
  }
  EXPECT_TRUE(has_logged("the peer sent no certificate"));
  RawTlsClient node(service_.port(), agent(ours_.issue("node")));
  say(node, hello_of("job", "a"));
  EXPECT_TRUE(await<Assignment>(node)) << node.error();
}

TEST_F(ServerWithTls, ProbesNeedNoneAndPagesDo) {
  for (const char* path : {"/healthz", "/readyz"}) {
    EXPECT_EQ(http_get(service_.port(), path).status, 200) << path;
    EXPECT_EQ(status_over_tls(path), 200) << path;
  }
  for (const char* path : {"/metrics", "/status.json"}) {
    const auto plain = http_get(service_.port(), path);
    EXPECT_EQ(plain.status, 403) << path;
    EXPECT_THAT(plain.body, HasSubstr("https://"));
    EXPECT_EQ(status_over_tls(path), 200) << path;
  }
  set_key();
  EXPECT_EQ(status_over_tls("/metrics"), 401);
  EXPECT_EQ(status_over_tls("/metrics", "Bearer " + read_token_of(kKey)), 200);
}

TEST_F(ServerWithTls, AKeyIsProvedForTheConnectionThatItIsProvedOn) {
  set_key();
  const auto prove = [](const std::string& channel, RawTlsClient& client) {
    return testing_support::prove(client, kKey, "job", channel);
  };
  RawTlsClient honest(service_.port(), agent());
  EXPECT_TRUE(std::holds_alternative<Proven>(prove(honest.channel().binding(), honest)));
  // A man in the middle forwards a proof. It was made for their own connection to the agent.
  RawTlsClient middle(service_.port(), agent()), other(service_.port(), agent());
  EXPECT_TRUE(std::holds_alternative<Refused>(prove(other.channel().binding(), middle)));
  RawTlsClient without(service_.port(), agent());
  EXPECT_TRUE(std::holds_alternative<Refused>(prove("", without)));
}

// Each handshake that begins costs the service a signature.
TEST_F(ServerWithTls, HandshakesThatAreAbandonedWaitForTheirTurnAndOthersDoNotWaitForThem) {
  constexpr std::size_t kTooMany = 20;
  constexpr std::size_t kAll = kTurns + HandshakeTurns::kWaiting + kTooMany;
  std::vector<std::unique_ptr<RawTcpClient>> abandoned;
  for (std::size_t i = 0; i < kAll; ++i) {
    abandoned.push_back(std::make_unique<RawTcpClient>(service_.port()));
  }
  TlsChannel hello = TlsChannel::agent(agent(), "localhost");
  const std::string bytes = hello.take_wire();
  const TimePoint begun = BootClock::now();
  for (const auto& one : abandoned) one->send(bytes);
  EXPECT_EQ(http_get(service_.port(), "/healthz").status, 200);
  // On a slow machine the first turns end before the last hello is sent.
  const bool is_burst = BootClock::now() - begun < HandshakeTurns::kHold / 2;
  std::size_t put_off = 0;
  for (const auto& one : abandoned) {
    const std::string answer = one->receive_some();
    EXPECT_NE(answer, "");
    if (answer == kTryLater) ++put_off;
  }
  if (is_burst) {
    EXPECT_GE(put_off, kTooMany);
  }
  EXPECT_LT(put_off, kAll - kTurns) << "turns come when the first are old";
  abandoned.clear();
  EXPECT_EQ(status_over_tls("/healthz"), 200);
}

// Many clients may share one gateway or one host.
TEST(HandshakeTurnsOfAService, AFloodOfAbandonedHandshakesKeepsOutNobodyOfItsAddress) {
  const TemporaryDirectory directory;
  const Authority ours(directory.path(), "ours");
  const IssuedFiles files = ours.issue("service");
  RunningService service{{.service_id = "s"}};
  service.set_tls({.cert = files.cert, .key = files.key, .ca = {}});
  const TlsContextPtr agent =
      TlsContext::for_agent({.cert = {}, .key = {}, .ca = ours.ca_file()})->context;
  const std::string hello = TlsChannel::agent(agent, "localhost").take_wire();
  std::vector<std::unique_ptr<RawTcpClient>> abandoned;
  // This client's hello waits while hellos of others arrive after it.
  RawTcpClient caller(service.port());
  for (int i = 0; i < 300; ++i) {
    abandoned.push_back(std::make_unique<RawTcpClient>(service.port()));
    abandoned.back()->send(hello);
    if (i == 150) caller.send(hello);
  }
  const std::string answer = caller.receive_some();
  EXPECT_NE(answer, "");
  EXPECT_NE(answer, kTryLater);
}

// The flood is as fast as a thread can be. Without turns each of its hellos would cost a signature,
// and probes would wait for longer and longer. What counts is how long the service's thread works
// until a probe has its answer: other tests may have the cores meanwhile. On a Xeon it works for
// 55 ms, and without turns for 1.7 to 2.0 s.
TEST_F(ServerWithTls, AFloodOfAbandonedHandshakesDoesNotMakeProbesSlow) {
  clockid_t clock{};
  service_.on_thread([&] { EXPECT_EQ(pthread_getcpuclockid(pthread_self(), &clock), 0); });
  const auto time_worked = [&]() -> Duration {
    timespec now{};
    EXPECT_EQ(clock_gettime(clock, &now), 0);
    return std::chrono::seconds(now.tv_sec) + Duration(now.tv_nsec);
  };
  const auto median_of_probes = [&] {
    std::vector<Duration> times;
    for (int probe = 0; probe < 5; ++probe) {
      const Duration before = time_worked();
      EXPECT_EQ(http_get(service_.port(), "/healthz").status, 200);
      times.push_back(time_worked() - before);
      testing_support::let_pass(std::chrono::milliseconds(100));
    }
    std::ranges::sort(times);
    return times[times.size() / 2];
  };
  const Duration calm = median_of_probes();
  const std::string hello = TlsChannel::agent(agent(), "localhost").take_wire();
  std::atomic<bool> is_over = false;
  std::atomic<int> sent = 0;
  std::thread flood([&] {
    for (; !is_over; ++sent) RawTcpClient(service_.port()).offer(hello);
  });
  EXPECT_TRUE(eventually([&] { return sent >= 700; }, std::chrono::minutes(3)));
  const Duration flooded = median_of_probes();
  is_over = true;
  flood.join();
  const Duration least = std::chrono::milliseconds(testing_support::kSanitized ? 5000 : 500);
  EXPECT_LT(flooded, std::max(20 * calm, least)) << sent << " hellos";
}

// The agent must not take the alert for the answer of another program.
TEST(TlsChannelOfAgent, ReadsThatItIsToTryLater) {
  const TemporaryDirectory directory;
  const Authority ours(directory.path(), "ours");
  TlsChannel channel = TlsChannel::agent(
      TlsContext::for_agent({.cert = {}, .key = {}, .ca = ours.ca_file()})->context, "localhost");
  const Result<void> received = channel.receive(kTryLater);
  ASSERT_FALSE(received);
  EXPECT_EQ(received.error().kind, ErrorKind::kResource);
  EXPECT_THAT(received.error().message(), HasSubstr("try later"));
}

TEST(TlsChannelOfAgent, IsPutOffHoweverTheAlertIsCutAndByNoOtherAlert) {
  const TemporaryDirectory directory;
  const Authority ours(directory.path(), "ours");
  const TlsContextPtr context =
      TlsContext::for_agent({.cert = {}, .key = {}, .ca = ours.ca_file()})->context;
  TlsChannel cut = TlsChannel::agent(context, "localhost");
  EXPECT_TRUE(cut.receive(kTryLater.substr(0, 3)));
  const Result<void> rest = cut.receive(kTryLater.substr(3));
  ASSERT_FALSE(rest);
  EXPECT_EQ(rest.error().kind, ErrorKind::kResource);
  const Result<void> other = TlsChannel::agent(context, "localhost").receive(kNoTlsHere);
  ASSERT_FALSE(other);
  EXPECT_EQ(other.error().kind, ErrorKind::kProtocol);
}

// For the service, such an alert of a client ends the handshake and says nothing of load. Anyone
// can send it.
TEST_F(ServerWithTls, AClientThatSaysTryLaterIsAFailedHandshake) {
  TlsChannel service = TlsChannel::service(
      TlsContext::for_service({.cert = own_.cert, .key = own_.key, .ca = {}})->context);
  const Result<void> received = service.receive(kTryLater);
  ASSERT_FALSE(received);
  EXPECT_EQ(received.error().kind, ErrorKind::kProtocol);
  EXPECT_THAT(received.error().message(), testing::Not(HasSubstr("try later")));
}

TEST_F(ServerWithTls, NewCertificatesCountForThoseWhoComeThen) {
  RawTlsClient before(service_.port(), agent());
  ASSERT_TRUE(before.is_open());
  const IssuedFiles other = theirs_.issue("service2");
  set_tls({.cert = other.cert, .key = other.key, .ca = {}});
  RawTlsClient after(service_.port(), agent());
  EXPECT_FALSE(after.is_open());
  EXPECT_THAT(after.error(), HasSubstr("not accepted"));
  say(before, hello_of("job", "a"));
  EXPECT_TRUE(await<Assignment>(before));
}

TEST_F(ServerWithTls, GarbageInsideOrInsteadOfItEndsItsOwnConnectionOnly) {
  RawTlsClient friendly(service_.port(), agent());
  say(friendly, hello_of("good", "a"));
  ASSERT_TRUE(await<Assignment>(friendly));

  RawTcpClient after_hello(service_.port());
  TlsChannel hello = TlsChannel::agent(agent(), "localhost");
  after_hello.send(hello.take_wire() + std::string(100, '\x55'));
  EXPECT_NE(after_hello.receive(1 << 20), "") << "the service's hello, at least";
  EXPECT_TRUE(has_logged("TLS handshake: "));

  RawTlsClient inside(service_.port(), agent());
  inside.send(std::string("\x01\x02\x03", 3));
  EXPECT_TRUE(inside.is_closed());
  RawTlsClient twice(service_.port(), agent());
  twice.send(std::string("\x16\x03\x01", 3));
  EXPECT_TRUE(twice.is_closed()) << "TLS inside TLS";

  say(friendly, Heartbeat{1});
  EXPECT_TRUE(await<HeartbeatAck>(friendly));
}

TEST_F(ServerWithTls, AnUnauthenticatedPeerMaySendLittleBeforeItIsOpen) {
  RawTcpClient peer(service_.port());
  peer.send(std::string("\x16\x03\x01\x40\x00\x01\x00\xff\xff", 9));
  EXPECT_TRUE(peer.send_until_closed(std::string(64 * 1024, '\0'), 100));
}

TEST_F(ServerWithTls, WhoDoesNotReadIsClosedAndTheOthersLiveOn) {
  RawTlsClient friendly(service_.port(), agent());
  say(friendly, hello_of("good", "a"));
  ASSERT_TRUE(await<Assignment>(friendly));
  RawTlsClient greedy(service_.port(), agent());
  say(greedy, hello_of("greedy", "b"));
  std::string beats;
  for (std::uint64_t i = 0; i < 1000; ++i) beats += *encode(AgentMessage(Heartbeat{i}));
  bool is_closed = false;
  for (int i = 0; i < 1000 && !is_closed; ++i) {
    greedy.channel().send(beats);
    is_closed = !greedy.tcp().offer(greedy.channel().take_wire());
  }
  EXPECT_TRUE(is_closed);
  say(friendly, Heartbeat{1});
  EXPECT_TRUE(await<HeartbeatAck>(friendly));
}

// --- deadlines, and services without TLS ---

class ServerInAHurry : public ServerWithTls {
 protected:
  ServerInAHurry() { hurried_.set_tls({.cert = own_.cert, .key = own_.key, .ca = {}}); }
  RunningService hurried_{{.hello_timeout = std::chrono::milliseconds(100), .service_id = "s"}};
};

TEST_F(ServerInAHurry, AHandshakeThatStopsInTheMiddleHasTheDeadlineOfAHello) {
  RawTcpClient half(hurried_.port());
  TlsChannel hello = TlsChannel::agent(agent(), "localhost");
  half.send(hello.take_wire());
  EXPECT_NE(half.receive(1 << 20), "") << "its answer, and then the end";
  RawTlsClient silent(hurried_.port(), agent());
  EXPECT_TRUE(silent.is_closed()) << "TLS alone is no hello";
  const auto lines = hurried_.log_lines();
  EXPECT_EQ(std::count_if(
                lines.begin(), lines.end(),
                [](const std::string& line) { return line.find("no hello within") != line.npos; }),
            2);
}

TEST_F(ServerInAHurry, AStoreOnTheSamePortTakesItsClientsAsEver) {
  std::string store_log;
  Logger log("test", [&](std::string_view line) { store_log += line; });
  std::optional<StoreServer> store;
  hurried_.on_thread([&] {
    store.emplace(hurried_.io(), log);
    hurried_.server().share_port_with(&*store);
  });
  testing_support::RawStoreClient client(hurried_);
  EXPECT_EQ(client.add("n", 1), 1);
  RawTlsClient sealed(hurried_.port(), agent());
  sealed.send(testing_support::handshake());
  EXPECT_TRUE(sealed.is_closed()) << "PyTorch's clients know no TLS, so it is nobody's";
  RawTlsClient silent(hurried_.port(), agent());
  EXPECT_TRUE(silent.is_closed()) << "who has begun TLS is no silent client of the store";
  hurried_.on_thread([&] {
    hurried_.server().share_port_with(nullptr);
    store.reset();
  });
}

TEST(ServerWithoutTls, SaysSoToAPeerThatSpeaksTls) {
  const TemporaryDirectory directory;
  const Authority authority(directory.path(), "ours");
  RunningService service;
  RawTlsClient client(
      service.port(),
      TlsContext::for_agent({.cert = {}, .key = {}, .ca = authority.ca_file()})->context);
  EXPECT_FALSE(client.is_open());
  EXPECT_THAT(client.error(), HasSubstr("has no --rdzv-tls-cert"));
  EXPECT_TRUE(eventually([&] {
    const auto lines = service.log_lines();
    return lines.size() == 1 && lines[0].find("it speaks TLS") != std::string::npos;
  }));
}

}  // namespace
}  // namespace ddprun
