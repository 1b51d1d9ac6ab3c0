// Tests the rendezvous service on a real socket, also with hostile agents.
#include "rendezvous/service/server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <future>
#include <nlohmann/json.hpp>

#include "rendezvous/auth/core/failure_rate.h"
#include "rendezvous/persistence/state_codec.h"
#include "rendezvous/protocol/control_codec.h"
#include "rendezvous/store/server.h"
#include "tests/support/control_frame.h"
#include "tests/support/eventually.h"
#include "tests/support/file_size_limit.h"
#include "tests/support/hello_of.h"
#include "tests/support/http_get.h"
#include "tests/support/hung_file.h"
#include "tests/support/raw_store_client.h"
#include "tests/support/raw_tcp_client.h"
#include "tests/support/running_service.h"
#include "tests/support/sanitized.h"
#include "tests/support/temporary_directory.h"

namespace ddprun {
namespace {

using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

using testing_support::await;
using testing_support::eventually;
using testing_support::frame_of;
using testing_support::hello_of;
using testing_support::http_get;
using testing_support::next_handshake;
using testing_support::next_message;
using testing_support::RawTcpClient;
using testing_support::reason_of;
using testing_support::say;
using testing_support::TemporaryDirectory;

// For tests whose agents send no heartbeats. On a slow machine, or with a sanitizer, they may take
// longer than a normal lease.
ServiceOptions with_long_leases() {
  ServiceOptions options{.service_id = "s"};
  options.times.lease = std::chrono::minutes(2);
  return options;
}

class ServerTest : public testing::Test {
 protected:
  // Waits for the line, because the service may return a page that it made a moment ago.
  bool metrics_have(const std::string& line) {
    return eventually([&] {
      const std::string page = http_get(service_.port(), "/metrics").body;
      return page.find("\n" + line + "\n") != std::string::npos;
    });
  }

  testing_support::RunningService service_;
};

// A connection proves itself for one job, and is not asked again for another job. So a client
// that is not an agent may send only one request.
TEST_F(ServerTest, WhoIsNoAgentAsksOnce) {
  RawTcpClient agent(service_.port());
  Hello hello = hello_of("j", "a");
  hello.node.supports_output = true;
  say(agent, hello);
  ASSERT_TRUE(await<Assignment>(agent));
  RawTcpClient reader(service_.port());
  UserRequest request{.what = UserRequest::What::kLogs, .job = "j", .by = "ada", .follow = true};
  say(reader, request);
  ASSERT_TRUE(await<Answer>(reader));
  ASSERT_TRUE(await<OutputDirective>(agent));
  request = {.what = UserRequest::What::kRestart, .job = "j", .by = "ada"};
  say(reader, request);
  EXPECT_TRUE(reader.is_closed());
  const ServiceMessage message = next_message(agent);
  ASSERT_TRUE(std::holds_alternative<OutputDirective>(message)) << "and not a Stop";
  EXPECT_EQ(std::get<OutputDirective>(message).what, OutputDirective::What::kEnd);
}

TEST_F(ServerTest, AHelloThatCannotBeMeantEndsItsOwnConnectionOnly) {
  RawTcpClient friendly(service_.port());
  say(friendly, hello_of("good", "a"));
  ASSERT_TRUE(await<Assignment>(friendly));
  const auto bad = [&](const std::string& nodes, const std::string& slots,
                       const std::string& generation, const std::string& timeout) {
    RawTcpClient unauthenticated(service_.port());
    unauthenticated.send(
        frame_of(R"({"type":"hello","protocol":1,"version":"x","instance":"","job":{"id":"bad",)" +
                 nodes + R"(,"max_restarts":0,"join_timeout_ms":)" + timeout +
                 R"(,"last_call_ms":0},"node":{"agent_id":"b","host":"b","slots":)" + slots +
                 R"(,"address":"127.0.0.1"},"status":{"phase":"idle","generation":)" + generation +
                 R"(,"ends":[],"store_port":0,"leaving":0}})"));
    EXPECT_TRUE(unauthenticated.is_closed()) << nodes << slots << generation << timeout;
  };
  const std::string one = R"("min_nodes":1,"max_nodes":1)";
  bad(R"("min_nodes":0,"max_nodes":0)", "1", "-1", "1000");
  bad(R"("min_nodes":0,"max_nodes":2)", "1", "-1", "1000");
  bad(R"("min_nodes":2,"max_nodes":1)", "1", "-1", "1000");
  bad(one, "0", "-1", "1000");
  bad(one, "-5", "-1", "1000");
  bad(one, "1", "9223372036854775807", "1000");
  bad(one, "1", "-1", "9223372036854775807");
  say(friendly, Heartbeat{1});
  EXPECT_TRUE(await<HeartbeatAck>(friendly)) << "the service lives, and this job with it";
}

TEST_F(ServerTest, ATideOfAgentsThatAreRefusedLeavesFewLines) {
  testing_support::RunningService service(with_long_leases());
  RawTcpClient friendly(service.port());
  say(friendly, hello_of("good", "a"));
  ASSERT_TRUE(await<Assignment>(friendly));
  Hello other = hello_of("good", "b");
  other.job.max_restarts = 7;
  for (int i = 0; i < 100; ++i) {
    RawTcpClient agent(service.port());
    say(agent, other);
    EXPECT_FALSE(await<Welcome>(agent));
  }
  const auto lines = service.log_lines();
  const auto refusals = std::count_if(lines.begin(), lines.end(), [](const std::string& line) {
    return line.find("refused an agent") != std::string::npos;
  });
  EXPECT_THAT(refusals, testing::AllOf(testing::Ge(1), testing::Le(20)));
}

TEST_F(ServerTest, AFailureOfAThousandWorkersIsTold) {
  constexpr int kNodes = 10;
  // A fifth under a sanitizer. The texts of all are still longer than a message may be.
  constexpr int kSlots = testing_support::kSanitized ? 20 : 100;
  testing_support::RunningService service(with_long_leases());
  std::vector<std::unique_ptr<RawTcpClient>> agents;
  for (int node = 0; node < kNodes; ++node) {
    agents.push_back(std::make_unique<RawTcpClient>(service.port()));
    Hello first = hello_of("large", "agent" + std::to_string(node));
    first.job.nodes = {kNodes, kNodes};
    first.node.slots = kSlots;
    say(*agents.back(), first);
  }
  for (int node = 0; node < kNodes; ++node) {
    RawTcpClient& agent = *agents[static_cast<std::size_t>(node)];
    const auto assignment = await<Assignment>(agent);
    ASSERT_TRUE(assignment);
    // An agent that does not shorten its texts would send this.
    AgentStatus status{.phase = AgentPhase::kIdle, .generation = assignment->generation};
    for (int i = 0; i < kSlots; ++i) {
      WorkerEnd end{.kind = EndKind::kSignaled, .code = SIGSEGV};
      end.rank = Rank(assignment->first_rank.value + i);
      end.host = "agent" + std::to_string(node);
      end.message = std::string(500, 'm');
      end.stderr_tail.assign(20, std::string(400, 'x'));
      status.ends.push_back(std::move(end));
    }
    say(agent, status);
  }
  for (const auto& agent : agents) {
    const auto end = await<End>(*agent);
    ASSERT_TRUE(end);
    ASSERT_FALSE(end->verdict.ends.empty());
    EXPECT_EQ(end->verdict.ends.front().stderr_tail.size(), 20u);
    EXPECT_EQ(end->verdict.ends.size() + static_cast<std::size_t>(end->verdict.more_ends),
              std::size_t{kNodes * kSlots});
  }
}

// --- keys and unauthenticated peers ---

constexpr const char* kKey = "0123456789abcdef";

class ServerWithAKey : public ServerTest {
 protected:
  ServerWithAKey() { set_keys(std::string(kKey) + "\nown fedcba9876543210"); }
  void set_keys(const std::string& text) { service_.set_keys(text); }
};

TEST_F(ServerWithAKey, WhoHasItJoins) {
  RawTcpClient agent(service_.port());
  ASSERT_TRUE(std::holds_alternative<Proven>(prove(agent, kKey, "good")));
  say(agent, hello_of("good", "a"));
  EXPECT_TRUE(await<Assignment>(agent));
}

TEST_F(ServerWithAKey, WhoHasItNotIsToldSoAndClosed) {
  RawTcpClient without(service_.port());
  say(without, hello_of("good", "a"));
  EXPECT_THAT(reason_of(next_handshake(without)), HasSubstr("--rdzv-key-file"));
  EXPECT_TRUE(without.is_closed());
  RawTcpClient wrong(service_.port());
  EXPECT_THAT(reason_of(prove(wrong, "fedcba9876543210", "good")), HasSubstr("is not the key"));
  EXPECT_TRUE(wrong.is_closed());
  service_.on_thread([&] { EXPECT_TRUE(service_.server().jobs().jobs().empty()); });
}

TEST_F(ServerWithAKey, AJobsOwnKeyOpensNoOther) {
  RawTcpClient agent(service_.port());
  ASSERT_TRUE(std::holds_alternative<Proven>(prove(agent, "fedcba9876543210", "own")));
  say(agent, hello_of("good", "a"));
  EXPECT_THAT(reason_of(next_handshake(agent)), HasSubstr("a job other than"));
  EXPECT_TRUE(agent.is_closed());
}

TEST_F(ServerWithAKey, KeysThatAreReadAgainCountForThoseWhoComeThen) {
  RawTcpClient before(service_.port());
  ASSERT_TRUE(std::holds_alternative<Proven>(prove(before, kKey, "good")));
  set_keys("a-new-key-of-today");
  say(before, hello_of("good", "a"));
  EXPECT_TRUE(await<Assignment>(before));
  RawTcpClient old(service_.port());
  EXPECT_NE(reason_of(prove(old, kKey, "good")), "not refused");
}

TEST_F(ServerWithAKey, ReadsLittleBeforeTheProof) {
  RawTcpClient unauthenticated(service_.port());
  const std::string frame = frame_of(std::string(kMaxHandshakeBytes + 1, ' '));
  unauthenticated.send(std::string_view(frame).substr(0, kControlHeaderBytes));
  EXPECT_TRUE(unauthenticated.is_closed());
}

TEST_F(ServerWithAKey, ShowsPagesToThoseWhoHaveTheToken) {
  using testing_support::HttpReply;
  EXPECT_EQ(http_get(service_.port(), "/healthz").status, 200);
  EXPECT_EQ(http_get(service_.port(), "/readyz").status, 200);
  for (const char* path : {"/metrics", "/status.json", "/nothing"}) {
    const HttpReply unauthenticated = http_get(service_.port(), path);
    EXPECT_EQ(unauthenticated.status, 401) << path;
    EXPECT_THAT(unauthenticated.head, HasSubstr("WWW-Authenticate: Bearer"));
  }
  const std::string token = read_token_of(kKey);
  EXPECT_EQ(http_get(service_.port(), "/metrics", "Bearer " + token).status, 200);
  EXPECT_EQ(http_get(service_.port(), "/status.json", "Bearer " + token).status, 200);
  EXPECT_EQ(http_get(service_.port(), "/nothing", "Bearer " + token).status, 404);
  for (const std::string& wrong : {"Bearer " + token.substr(1), "Basic " + token, token,
                                   "Bearer " + read_token_of("fedcba9876543210")}) {
    EXPECT_EQ(http_get(service_.port(), "/metrics", wrong).status, 401) << wrong;
  }
}

TEST_F(ServerWithAKey, ThePageItselfNeedsNoTokenBecauseItAsksForOne) {
  const auto page = http_get(service_.port(), "/");
  EXPECT_EQ(page.status, 200);
  EXPECT_THAT(page.head, HasSubstr("Content-Type: text/html; charset=utf-8"));
  for (const char* path : {"/page.css", "/page.js", "/actions.js", "/elements.js", "/icon.svg"}) {
    EXPECT_EQ(http_get(service_.port(), path).status, 200) << path;
  }
  EXPECT_EQ(http_get(service_.port(), "/events").status, 401);
}

TEST_F(ServerWithAKey, ABrowserGetsACookieForTheToken) {
  const auto post = [&](const std::string& token, const std::string& origin) {
    RawTcpClient browser(service_.port());
    browser.send("POST /token HTTP/1.1\r\nHost: here:1\r\nOrigin: " + origin +
                 "\r\nConnection: close\r\nContent-Length: " + std::to_string(6 + token.size()) +
                 "\r\n\r\ntoken=" + token);
    return browser.receive(1 << 16);
  };
  const std::string token = read_token_of(kKey);
  EXPECT_THAT(post(token, "http://there:1"), StartsWith("HTTP/1.1 403 "));
  EXPECT_THAT(post(token, "https://here:1"), StartsWith("HTTP/1.1 403 "));
  EXPECT_THAT(post(token.substr(1), "http://here:1"), StartsWith("HTTP/1.1 400 "));
  EXPECT_THAT(post(read_token_of("fedcba9876543210"), "http://here:1"),
              StartsWith("HTTP/1.1 403 "));
  const auto got = http_get(service_.port(), "/token");
  EXPECT_EQ(got.status, 405);
  EXPECT_THAT(got.head, HasSubstr("Allow: POST"));

  const std::string answer = post(token, "http://here:1");
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 200 "));
  EXPECT_THAT(answer, HasSubstr("; HttpOnly; SameSite=Strict\r\n"));
  EXPECT_THAT(answer, Not(HasSubstr(token))) << "a browser shows cookies to other ports, too";
  const std::size_t begin = answer.find("Set-Cookie: ") + 12;
  const std::string cookie = answer.substr(begin, answer.find(';', begin) - begin);
  const auto get_with = [&](const std::string& value) {
    RawTcpClient browser(service_.port());
    browser.send("GET /events HTTP/1.1\r\nHost: here:1\r\nCookie: " + value + "\r\n\r\n");
    return browser.receive(12);
  };
  EXPECT_EQ(get_with("a=b; " + cookie), "HTTP/1.1 200");
  const std::string name = cookie.substr(0, cookie.find('='));
  EXPECT_THAT(name, StartsWith("ddprun_read_"));
  EXPECT_EQ(get_with(name + "=" + token), "HTTP/1.1 401");
  // One of another service of the same host.
  EXPECT_EQ(get_with("ddprun_read_01234567=x; " + cookie), "HTTP/1.1 200");
  EXPECT_EQ(get_with(""), "HTTP/1.1 401");
}

TEST_F(ServerWithAKey, AfterManyWrongProofsTheNextAreToldToTryLaterAndTheKeyOpensAsEver) {
  const auto try_wrong = [&](const std::string& from) {
    RawTcpClient wrong(service_.port(), "127.0.0.1", 0, from);
    return prove(wrong, "fedcba9876543210", "good");
  };
  for (int i = 0; i < FailureRate::kBurst; ++i) {
    EXPECT_THAT(reason_of(try_wrong("127.0.0.1")), HasSubstr("is not the key"));
  }
  auto later = try_wrong("127.0.0.1");
  // On a slow machine some of the first failures are already forgotten.
  for (int i = 0; i < 10 * FailureRate::kBurst && !std::holds_alternative<Silence>(later); ++i)
    later = try_wrong("127.0.0.1");
  ASSERT_TRUE(std::holds_alternative<Silence>(later));
  EXPECT_THAT(std::get<Silence>(later).reason, HasSubstr("try later"));
  EXPECT_THAT(reason_of(try_wrong("127.0.0.2")), HasSubstr("is not the key"));
  RawTcpClient right(service_.port());
  EXPECT_TRUE(std::holds_alternative<Proven>(prove(right, kKey, "good")));
  RawTcpClient of_another_job(service_.port());
  EXPECT_THAT(reason_of(prove(of_another_job, kKey, "own")), HasSubstr("is not the key"));
  EXPECT_EQ(http_get(service_.port(), "/healthz").status, 200);
  // The log has a line for only some of the failures.
  const auto lines = service_.log_lines();
  const auto is_about_failure = [](const std::string& line) {
    return line.find("is not the key") != std::string::npos;
  };
  EXPECT_EQ(std::count_if(lines.begin(), lines.end(), is_about_failure), 10);
}

TEST_F(ServerWithAKey, GarbageFromAnAddressKeepsNobodyOutThere) {
  std::optional<StoreServer> store;  // of static mode
  Logger log("store", [](std::string_view) {});
  service_.on_thread([&] {
    store.emplace(service_.io(), log);
    service_.server().share_port_with(&*store);
  });
  for (int i = 0; i < 5 * FailureRate::kBurst; ++i) {
    RawTcpClient garbage(service_.port());
    garbage.send(i % 2 == 0 ? std::string("DDPRxxxxxx") : std::string("\0\0\0\5\xff\xff", 6));
    EXPECT_TRUE(garbage.is_closed());
  }
  for (int i = 0; i < 2 * FailureRate::kBurst; ++i) {
    RawTcpClient wrong(service_.port());
    prove(wrong, "fedcba9876543210", "good");
  }
  EXPECT_EQ(http_get(service_.port(), "/healthz").status, 200);
  RawTcpClient right(service_.port());
  EXPECT_TRUE(std::holds_alternative<Proven>(prove(right, kKey, "good")));
  testing_support::RawStoreClient worker(service_);
  EXPECT_EQ(worker.add("n", 1), 1);
  service_.on_thread([&] {
    service_.server().share_port_with(nullptr);
    store.reset();
  });
}

TEST_F(ServerTest, WhoWaitsWithoutAHelloKeepsNobodyOut) {
  std::vector<std::unique_ptr<RawTcpClient>> silent;
  for (std::size_t i = 0; i <= RendezvousServer::kMaxPending; ++i) {
    silent.push_back(std::make_unique<RawTcpClient>(service_.port()));
  }
  EXPECT_TRUE(silent.front()->is_closed()) << "who has waited for longest";
  RawTcpClient friendly(service_.port());
  say(friendly, hello_of("good", "a"));
  EXPECT_TRUE(await<Assignment>(friendly));
  EXPECT_FALSE(silent.back()->has_bytes());
}

TEST_F(ServerTest, AnAgentWithAKeyIsToldThatThereIsNone) {
  RawTcpClient agent(service_.port());
  AgentHandshake handshake(kKey, {.version = "v", .job = "good", .nonce = "n"});
  say(agent, handshake.knock());
  const ServiceMessage refused = next_message(agent);
  ASSERT_TRUE(std::holds_alternative<Refused>(refused));
  EXPECT_THAT(std::get<Refused>(refused).reason, HasSubstr("has no key"));
}

TEST_F(ServerTest, WhoDoesNotReadIsClosedAndTheOthersLiveOn) {
  RawTcpClient friendly(service_.port());
  say(friendly, hello_of("good", "a"));
  ASSERT_TRUE(await<Assignment>(friendly));
  RawTcpClient greedy(service_.port(), "127.0.0.1", 4096);
  say(greedy, hello_of("greedy", "b"));
  std::string beats;
  for (std::uint64_t i = 0; i < 1000; ++i) beats += *encode(AgentMessage(Heartbeat{i}));
  // These are far more answers than the kernel and the service hold for a client that does not
  // read.
  EXPECT_TRUE(greedy.send_until_closed(beats, 1000));
  say(friendly, Heartbeat{1});
  EXPECT_TRUE(await<HeartbeatAck>(friendly));
}

// The second connection of PyTorch up to 2.0 is silent. Its thread busy-loops when that is
// closed.
TEST(ServerOfASharedPort, KeepsWhoIsSilentAndEndsWhoBeginsAHelloAndNeverEndsIt) {
  using namespace std::literals;
  testing_support::RunningService service({.hello_timeout = 50ms, .service_id = "s"});
  std::string store_log;
  Logger log("test", [&](std::string_view line) { store_log += line; });
  std::optional<StoreServer> store;
  service.on_thread([&] {
    store.emplace(service.io(), log);
    service.server().share_port_with(&*store);
  });
  RawTcpClient silent(service.port()), half_an_agent(service.port());
  half_an_agent.send(kControlMagic.substr(0, 1));
  EXPECT_TRUE(half_an_agent.is_closed());  // so the silent one's time is over, too
  testing_support::RawStoreClient other(service);
  EXPECT_EQ(other.add("n", 1), 1);
  silent.send(testing_support::handshake());
  silent.send(testing_support::request(Command::kAdd, {"n"}, 1));
  EXPECT_EQ(silent.receive(8), testing_support::i64(2));
  service.on_thread([&] {
    service.server().share_port_with(nullptr);
    store.reset();
  });
  EXPECT_EQ(store_log, "");
}

// --- what outside observers see ---

TEST_F(ServerTest, AnswersHttpOnThePortOfTheAgents) {
  RawTcpClient agent(service_.port());
  say(agent, hello_of("job", "a"));
  ASSERT_TRUE(await<Assignment>(agent));
  EXPECT_EQ(http_get(service_.port(), "/healthz").status, 200);
  EXPECT_EQ(http_get(service_.port(), "/readyz").status, 200);
  EXPECT_EQ(http_get(service_.port(), "/nothing").status, 404);
  const auto metrics = http_get(service_.port(), "/metrics");
  EXPECT_EQ(metrics.status, 200);
  EXPECT_THAT(metrics.head, HasSubstr("text/plain; version=0.0.4"));
  EXPECT_TRUE(metrics_have("ddprun_job_members{job=\"job\"} 1"));
  EXPECT_TRUE(metrics_have("ddprun_control_connections 1"));
  EXPECT_TRUE(metrics_have("ddprun_http_requests_total{status=\"404\"} 1"));
  const auto status = nlohmann::json::parse(http_get(service_.port(), "/status.json").body);
  EXPECT_EQ(status["jobs"][0]["nodes"][0]["host"], "a");
  say(agent, Heartbeat{1});
  EXPECT_TRUE(await<HeartbeatAck>(agent)) << "nothing of that disturbed the agent";
}

TEST_F(ServerTest, AsksAgentsForTheirRanksOnlyWhenTheStatusIsRead) {
  RawTcpClient agent(service_.port());
  say(agent, hello_of("job", "a"));
  ASSERT_TRUE(await<Assignment>(agent));
  const auto is_asked = [&] {
    say(agent, Heartbeat{1});
    return await<HeartbeatAck>(agent)->is_watched;
  };
  EXPECT_EQ(http_get(service_.port(), "/metrics").status, 200);
  EXPECT_EQ(http_get(service_.port(), "/").status, 200);
  EXPECT_FALSE(is_asked());
  const auto ranks = [&] {
    const auto page = nlohmann::json::parse(http_get(service_.port(), "/status.json").body);
    return page["jobs"][0]["ranks"];
  };
  EXPECT_EQ(ranks(), nlohmann::json::array());
  EXPECT_TRUE(is_asked());
  const RankRow row{.rank = Rank(0), .state = "running", .step = 7};
  say(agent, Heartbeat{2, {Generation(0), {row}}});
  EXPECT_TRUE(eventually([&] { return ranks().size() == 1; })) << "a page is kept for a moment";
  EXPECT_EQ(ranks()[0]["step"], 7);
}

TEST_F(ServerTest, AsksAgentsForTheirRanksWhileAPageOrAUserWatches) {
  RawTcpClient agent(service_.port());
  say(agent, hello_of("job", "a"));
  RawTcpClient other(service_.port());
  say(other, hello_of("other", "b"));
  ASSERT_TRUE(await<Assignment>(agent) && await<Assignment>(other));
  const auto is_asked = [](RawTcpClient& one) {
    say(one, Heartbeat{1});
    return await<HeartbeatAck>(one)->is_watched;
  };
  RawTcpClient user(service_.port());
  say(user, UserRequest{.what = UserRequest::What::kStatus, .number = 1, .job = "job"});
  ASSERT_TRUE(await<Answer>(user));
  EXPECT_TRUE(is_asked(agent));
  EXPECT_FALSE(is_asked(other)) << "the user looks at one job";
  RawTcpClient page(service_.port());
  page.send("GET /events HTTP/1.1\r\nHost: here\r\n\r\n");
  page.receive_through("\n\n");
  EXPECT_TRUE(is_asked(other));
}

// An agent in the service's process sends no heartbeats.
TEST_F(ServerTest, AnAgentInItsProcessIsAskedWhenTheStatusIsRead) {
  std::atomic<int> asked = 0;
  service_.on_thread([&] {
    RendezvousServer& server = service_.server();
    const auto id =
        server.attach([](const ServiceMessage&) {},
                      [&] {
                        ++asked;
                        return RankReport{Generation(0), {{.rank = Rank(0), .state = "running"}}};
                      });
    server.receive(id, hello_of("job", "a"));
  });
  EXPECT_EQ(http_get(service_.port(), "/metrics").status, 200);
  EXPECT_EQ(asked, 0);
  const auto page = nlohmann::json::parse(http_get(service_.port(), "/status.json").body);
  EXPECT_EQ(asked, 1);
  EXPECT_EQ(page["jobs"][0]["ranks"].size(), 1u);
}

TEST_F(ServerTest, PushesChangesToOpenPages) {
  RawTcpClient reader(service_.port());
  reader.send("GET /events HTTP/1.1\r\nHost: here\r\n\r\n");
  const std::string first = reader.receive_through("\n\n");
  EXPECT_THAT(first, HasSubstr("text/event-stream"));
  EXPECT_THAT(first, HasSubstr("\"jobs\":["));
  RawTcpClient agent(service_.port());
  say(agent, hello_of("job", "a"));
  ASSERT_TRUE(await<Assignment>(agent));
  AgentStatus status{.phase = AgentPhase::kRunning, .generation = Generation(0)};
  status.step = 4321;
  say(agent, status);
  std::string event;
  do {
    event = reader.receive_through("\n\n");
    ASSERT_FALSE(event.empty());
  } while (event.find("\"step\":4321") == event.npos);
  EXPECT_THAT(event, HasSubstr("\"id\":\"job\""));
}

TEST_F(ServerTest, AnAgentWhoseMagicComesByteByByteIsTakenForOne) {
  RawTcpClient agent(service_.port());
  for (const char byte : *encode(AgentMessage(hello_of("job", "a")))) agent.send({&byte, 1});
  EXPECT_TRUE(await<Assignment>(agent));
}

TEST_F(ServerTest, AMessageOfALaterVersionIsPassedOverWhereAnAgentSaysIt) {
  RawTcpClient agent(service_.port());
  say(agent, hello_of("job", "a"));
  ASSERT_TRUE(await<Assignment>(agent));
  agent.send(frame_of(R"({"type":"fireworks","at":"midnight"})"));
  say(agent, Heartbeat{1});
  EXPECT_TRUE(await<HeartbeatAck>(agent));
  RawTcpClient unauthenticated(service_.port());
  unauthenticated.send(frame_of(R"({"type":"fireworks","at":"midnight"})"));
  EXPECT_TRUE(unauthenticated.is_closed()) << "it has not said who it is";
}

TEST_F(ServerTest, AnAgentOfAnotherProtocolHearsWhichOnesAreSpoken) {
  RawTcpClient agent(service_.port());
  agent.send(frame_of(R"({"type":"hello","protocol":2,"version":"9.9","job":"of another kind"})"));
  const ServiceMessage answer = next_message(agent);
  const Refused* refused = std::get_if<Refused>(&answer);
  ASSERT_TRUE(refused);
  EXPECT_THAT(refused->reason,
              HasSubstr("speaks control protocol 1, this agent (ddprun 9.9) speaks 2"));
}

TEST_F(ServerTest, CountsHandshakesThatItRefuses) {
  EXPECT_TRUE(metrics_have("ddprun_refused_handshakes_total 0"));
  RawTcpClient unauthenticated(service_.port());
  unauthenticated.send(std::string_view("\0\1\2", 3));
  EXPECT_TRUE(unauthenticated.is_closed());
  RawTcpClient liar(service_.port());
  liar.send("DDPRnonsense");
  EXPECT_TRUE(liar.is_closed());
  RawTcpClient old(service_.port());
  Hello hello_of_old = hello_of("job", "a");
  hello_of_old.protocol = 99;
  say(old, hello_of_old);
  EXPECT_FALSE(await<Welcome>(old));
  EXPECT_TRUE(metrics_have("ddprun_refused_handshakes_total 3"));
}

TEST_F(ServerTest, AStoreOnTheSamePortIsServedAndShown) {
  std::optional<StoreServer> store;
  Logger log("store", [](std::string_view) {});
  service_.on_thread([&] {
    store.emplace(service_.io(), log);
    service_.server().share_port_with(&*store);
    service_.server().show_store(&*store);
  });
  RawTcpClient client(service_.port());
  client.send(testing_support::handshake() + testing_support::request(Command::kPing, {}, 7));
  EXPECT_EQ(client.receive(4), std::string("\x07\0\0\0", 4));
  RawTcpClient agent(service_.port());
  say(agent, hello_of("job", "a"));
  EXPECT_TRUE(await<Assignment>(agent));
  EXPECT_TRUE(metrics_have("ddprun_store_operations_total{kind=\"PING\"} 1"));
  EXPECT_TRUE(metrics_have("ddprun_store_connections 1"));
  service_.on_thread([&] {
    service_.server().share_port_with(nullptr);
    service_.server().show_store(nullptr);
    store.reset();
  });
  EXPECT_TRUE(eventually([&] {
    const std::string page = http_get(service_.port(), "/metrics").body;
    return page.find("ddprun_store") == std::string::npos;
  }));
}

TEST_F(ServerTest, MeasuresHowLateItsLoopComesToItsWork) {
  // The loop is held up for longer than the timer's period of one second. So one value is above
  // half a second, wherever in its period the timer was.
  service_.on_thread([] { testing_support::let_pass(std::chrono::milliseconds(1700)); });
  EXPECT_TRUE(eventually([&] {
    const std::string page = http_get(service_.port(), "/metrics").body;
    const auto value = [&](const std::string& series) {
      return std::stoi(page.substr(page.find("\n" + series + " ") + series.size() + 2));
    };
    return value("ddprun_event_loop_lag_seconds_count") >
           value("ddprun_event_loop_lag_seconds_bucket{le=\"0.5\"}");
  }));
}

TEST_F(ServerTest, IsNotReadyWhenItEndsWithItsJob) {
  RawTcpClient agent(service_.port());
  say(agent, hello_of("job", "a"));
  ASSERT_TRUE(await<Assignment>(agent));
  service_.on_thread([&] { service_.server().when_idle([] {}); });
  EXPECT_EQ(http_get(service_.port(), "/readyz").status, 503);
  EXPECT_EQ(http_get(service_.port(), "/healthz").status, 200);
}

TEST_F(ServerTest, HttpThatIsCutOffOrNonsenseDisturbsNobody) {
  RawTcpClient agent(service_.port());
  say(agent, hello_of("good", "a"));
  ASSERT_TRUE(await<Assignment>(agent));
  for (const char* bytes :
       {"G", "GET", "GET /metrics HT", "DELETE", "D", "get ", "POST / HTTP/1.1\r\n"}) {
    RawTcpClient unauthenticated(service_.port());
    unauthenticated.send(bytes);
  }
  RawTcpClient wrong(service_.port());
  wrong.send("DELETE /metrics HTTP/1.1\r\nHost: a\r\n\r\n");
  EXPECT_EQ(wrong.receive(13), "HTTP/1.1 405 ");
  EXPECT_TRUE(metrics_have("ddprun_http_connections 2")) << "this one, and the one that asks";
  say(agent, Heartbeat{1});
  EXPECT_TRUE(await<HeartbeatAck>(agent));
}

// --- with a state directory ---

class DurableServerTest : public testing::Test {
 protected:
  void start(std::size_t compact_bytes = StateDirectory::kCompactBytes) {
    service_.reset();
    Result<StateDirectory> directory = StateDirectory::open(temporary_.path(), compact_bytes);
    ASSERT_TRUE(directory) << directory.error().message();
    Result<ServiceState> state = decode_state(directory->image());
    ASSERT_TRUE(state) << state.error().message();
    service_.emplace(ServiceOptions{.service_id = "s"}, std::uint16_t{0},
                     KeptState{std::move(*directory), std::move(*state)});
  }

  // Ends the agent's job while nothing can be written. Returns false if the service has not
  // noticed.
  bool finish_without_room(RawTcpClient& agent) {
    say(agent, AgentStatus{.phase = AgentPhase::kFinished, .generation = Generation(0)});
    return testing_support::eventually(
        [&] { return service_->has_logged("no new jobs or agents are admitted"); });
  }
  // Returns false if it takes longer than a test waits.
  bool drain() {
    std::promise<void> drained;
    service_->on_thread([&] { service_->server().drain([&] { drained.set_value(); }); });
    return drained.get_future().wait_for(testing_support::kPatience) == std::future_status::ready;
  }
  bool knows(const std::string& job) {
    const Membership* found = nullptr;
    service_->on_thread([&] { found = service_->server().jobs().find(job); });
    return found != nullptr;
  }

  TemporaryDirectory temporary_;
  std::optional<testing_support::RunningService> service_;
};

TEST_F(DurableServerTest, ARestartedServiceGoesOnWithTheJobAndItsAgentAlone) {
  start();
  Hello first = hello_of("j", "a");
  {
    RawTcpClient agent(service_->port());
    say(agent, first);
    const auto welcome = await<Welcome>(agent);
    ASSERT_TRUE(welcome);
    first.instance = welcome->instance;
    first.assignment = await<Assignment>(agent);
    ASSERT_TRUE(first.assignment);
  }
  start();
  first.status = {.phase = AgentPhase::kRunning, .generation = Generation(0)};
  RawTcpClient agent(service_->port());
  say(agent, first);
  const auto welcome = await<Welcome>(agent);
  ASSERT_TRUE(welcome);
  EXPECT_EQ(welcome->instance, first.instance);
  EXPECT_TRUE(
      testing_support::eventually([&] { return service_->has_logged("took over generation 0"); }));
}

TEST_F(DurableServerTest, WithoutRoomItServesWhatRunsAdmitsNothingNewAndRecovers) {
  start();
  RawTcpClient running(service_->port());
  say(running, hello_of("running", "a"));
  ASSERT_TRUE(await<Assignment>(running));
  {
    const testing_support::FileSizeLimit limit(20);
    for (const char* job : {"new", "newer"}) {
      RawTcpClient newcomer(service_->port());
      say(newcomer, hello_of(job, job));
      const auto silence = await<Silence>(newcomer);
      ASSERT_TRUE(silence);
      EXPECT_THAT(silence->reason, HasSubstr("File too large"));
      EXPECT_TRUE(newcomer.is_closed());
    }
    say(running, Heartbeat{1});
    EXPECT_TRUE(await<HeartbeatAck>(running));
    EXPECT_TRUE(service_->has_logged("no new jobs or agents are admitted"));
    EXPECT_FALSE(service_->has_logged("can be written again"));
    EXPECT_EQ(http_get(service_->port(), "/readyz").status, 503);
  }
  ASSERT_TRUE(
      testing_support::eventually([&] { return service_->has_logged("can be written again"); }));
  RawTcpClient newcomer(service_->port());
  say(newcomer, hello_of("new", "new"));
  const auto assignment = await<Assignment>(newcomer);
  ASSERT_TRUE(assignment);
  EXPECT_EQ(assignment->restart_count, 0) << "what was refused has never been";
}

// A job that has to change while the disk is full waits until there is room, and then continues.
TEST_F(DurableServerTest, NothingIsToldThatIsNotSafe) {
  start();
  RawTcpClient agent(service_->port());
  say(agent, hello_of("j", "a"));
  ASSERT_TRUE(await<Assignment>(agent));
  {
    const testing_support::FileSizeLimit limit(20);
    ASSERT_TRUE(finish_without_room(agent));
    say(agent, Heartbeat{7});
    const ServiceMessage next_one = next_message(agent);
    ASSERT_TRUE(std::holds_alternative<HeartbeatAck>(next_one)) << "not the verdict";
  }
  EXPECT_TRUE(await<End>(agent));
}

// However often an agent repeats its status, the other one gets the directive once.
TEST_F(DurableServerTest, OfWhatWaitsForTheDiskAnAgentGetsTheNewest) {
  start();
  RawTcpClient fails(service_->port());
  RawTcpClient runs(service_->port());
  for (RawTcpClient* agent : {&fails, &runs}) {
    Hello first = hello_of("j", agent == &fails ? "a" : "b");
    first.job.nodes = {2, 2};
    first.job.max_restarts = 1;
    say(*agent, first);
  }
  ASSERT_TRUE(await<Assignment>(fails));
  ASSERT_TRUE(await<Assignment>(runs));
  {
    const testing_support::FileSizeLimit limit(20);
    say(fails, AgentStatus{.phase = AgentPhase::kIdle, .generation = Generation(0)});
    say(fails, Heartbeat{1});
    ASSERT_TRUE(std::holds_alternative<HeartbeatAck>(next_message(fails)));
    const AgentStatus still{.phase = AgentPhase::kRunning, .generation = Generation(0)};
    for (int i = 0; i < 100; ++i) say(runs, still);
    say(runs, Heartbeat{1});
    ASSERT_TRUE(std::holds_alternative<HeartbeatAck>(next_message(runs)));
  }
  ASSERT_TRUE(std::holds_alternative<Stop>(next_message(runs)));
  say(runs, Heartbeat{2});
  EXPECT_TRUE(std::holds_alternative<HeartbeatAck>(next_message(runs)));
}

TEST_F(DurableServerTest, WhileTheDiskHangsNothingNewIsAdmittedAndWhatItTookLateHasNeverBeen) {
  start(1);  // so that the journal is soon rewritten
  testing_support::HungFile hung(temporary_ / "journal.new");
  RawTcpClient newcomer(service_->port());
  say(newcomer, hello_of("j", "a"));
  const auto silence = await<Silence>(newcomer);
  ASSERT_TRUE(silence);
  EXPECT_THAT(silence->reason, HasSubstr("did not answer"));
  EXPECT_TRUE(service_->has_logged("no new jobs or agents are admitted"));
  EXPECT_EQ(http_get(service_->port(), "/readyz").status, 503);
  hung.release();
  EXPECT_TRUE(eventually([&] { return http_get(service_->port(), "/readyz").status == 200; }));
  ASSERT_TRUE(drain());
  start();
  EXPECT_FALSE(knows("j"));
}

TEST_F(DurableServerTest, DrainingWritesTellsEveryoneAndListensNoMore) {
  start();
  RawTcpClient agent(service_->port());
  say(agent, hello_of("j", "a"));
  ASSERT_TRUE(await<Assignment>(agent));
  // Another agent comes at the same moment. Nothing of its job is on the disk yet.
  std::promise<void> drained;
  service_->on_thread([&] {
    RendezvousServer& server = service_->server();
    server.receive(server.attach([](const ServiceMessage&) {}, nullptr), hello_of("k", "b"));
    server.drain([&] { drained.set_value(); });
  });
  ASSERT_EQ(drained.get_future().wait_for(testing_support::kPatience), std::future_status::ready);
  EXPECT_TRUE(await<Silence>(agent));
  EXPECT_FALSE(testing_support::can_connect(service_->port()));
  EXPECT_FALSE(service_->has_logged("are lost"));
  start();
  EXPECT_TRUE(knows("j"));
  EXPECT_TRUE(knows("k"));
}

TEST_F(DurableServerTest, DrainingDoesNotWaitForADiskForEver) {
  start();
  RawTcpClient agent(service_->port());
  say(agent, hello_of("j", "a"));
  ASSERT_TRUE(await<Assignment>(agent));
  const testing_support::FileSizeLimit limit(20);
  ASSERT_TRUE(finish_without_room(agent));
  const TimePoint begun = BootClock::now();
  ASSERT_TRUE(drain());
  EXPECT_GE(BootClock::now() - begun, RendezvousServer::kDiskTime);
  const auto silence = await<Silence>(agent);
  EXPECT_TRUE(silence) << "and no verdict";
  EXPECT_TRUE(service_->has_logged("are lost"));
}

TEST_F(DurableServerTest, IsNotReadyWhenItWasToldToEnd) {
  start();
  RawTcpClient probe(service_->port());
  const std::string request = "GET /readyz HTTP/1.1\r\nHost: a\r\n\r\n";
  probe.send(request);
  const auto status = [&] { return probe.receive(13); };
  ASSERT_EQ(status(), "HTTP/1.1 200 ");
  const std::string page = probe.receive_through("ok\n");
  ASSERT_TRUE(page.ends_with("ok\n")) << page;
  ASSERT_TRUE(drain());
  probe.send(request);
  EXPECT_EQ(status(), "HTTP/1.1 503 ");
}

}  // namespace
}  // namespace ddprun
