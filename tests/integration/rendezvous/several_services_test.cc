// Tests several ddp-rendezvous whose state is in a real etcd: one leads, the others stand by.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <csignal>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "rendezvous/membership/core/leadership.h"
#include "tests/integration/rendezvous/rendezvous_frame.h"
#include "tests/support/certificates.h"
#include "tests/support/control_frame.h"
#include "tests/support/etcd_cluster.h"
#include "tests/support/hello_of.h"
#include "tests/support/http_get.h"
#include "tests/support/raw_tcp_client.h"
#include "tests/support/test_seed.h"

namespace ddprun::testing_support {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr std::size_t kServices = 3;

class SeveralServices : public RendezvousTest {
 protected:
  void SetUp() override {
    RendezvousTest::SetUp();
    if (const std::string why = EtcdCluster::why_not(); !why.empty()) GTEST_SKIP() << why;
    etcd_.emplace(1);
    give_etcd_a_past();
    for (std::size_t i = 0; i < kServices; ++i) start_service(i);
  }
  void TearDown() override {
    for (auto& service : services_) service.reset();
    etcd_.reset();
    RendezvousTest::TearDown();
  }

  std::string state() {
    std::string members;
    for (const HostPort& member : etcd_->endpoints()) members += "," + to_text(member);
    return "--state=etcd://" + members.substr(1) + "/test";
  }
  // Runs a job. A service without a past would wait for agents of an earlier one at its port.
  void give_etcd_a_past() {
    const auto service = start_rendezvous({"--listen=127.0.0.1:0", state()});
    const std::string address = listening_address(*service);
    const auto job = start(node(address, {"--nnodes=1"}, "true"));
    ASSERT_EQ(job->wait(), 0) << job->err() << service->err();
    end(*service);
  }
  void start_service(std::size_t i) {
    // A lease that is longer than the delays of a busy machine.
    services_[i] = start_rendezvous({"--listen=" + ports_[i].endpoint(), "--lease=20", state()});
    ASSERT_NE(listening_address(*services_[i]), "") << services_[i]->err();
  }
  void kill_service(std::size_t i) {
    services_[i]->signal(SIGKILL);
    EXPECT_EQ(services_[i]->wait(), 128 + SIGKILL);
    services_[i].reset();
  }
  HttpReply page(std::size_t i, const std::string& path) const {
    return http_get(ports_[i].port(), path);
  }

  // Waits until a service other than `but` leads. `but` is not asked.
  std::optional<std::size_t> leader(std::optional<std::size_t> but = {},
                                    Duration allowed = kPatience) const {
    std::optional<std::size_t> found;
    eventually(
        [&] {
          for (std::size_t i = 0; i < kServices; ++i) {
            if (i != but && services_[i] && page(i, "/leader").status == 200) found = i;
          }
          return found.has_value();
        },
        allowed);
    return found;
  }
  bool becomes(std::size_t i, const std::string& ready) const {
    return eventually([&] { return page(i, "/readyz").body.starts_with(ready); });
  }
  // Expects that the job's report books this time as work, and no more time than `all`.
  void expect_books(Duration worked, Duration all) const {
    const auto times = nlohmann::json::parse(read_file(directory_ / "report.json"))["times"];
    const auto causes = times["causes_ms"].get<std::map<std::string, std::int64_t>>();
    std::int64_t sum = 0;
    for (const auto& [cause, ms] : causes) sum += ms;
    const std::int64_t wall = times["wall_ms"];
    EXPECT_NEAR(sum, wall, static_cast<double>(causes.size())) << "each is rounded: " << times;
    EXPECT_LE(wall, to_ms(all)) << times;
    EXPECT_GE(causes.at("training"), to_ms(worked)) << times;
    EXPECT_EQ(causes.at("recovery"), 0) << times;
    EXPECT_EQ(times["restarts"], 0) << times;
  }
  std::string all_err() const {
    std::string all;
    for (const auto& service : services_) all += service ? service->err() : "";
    return all;
  }

  std::optional<EtcdCluster> etcd_;
  const std::array<HeldPort, kServices> ports_{};
  std::array<std::unique_ptr<ChildProcess>, kServices> services_;
};

// Agent: what a real agent would say and hear, step by step.
struct Agent {
  RawTcpClient client;
  Hello hello = hello_of("job", "a");
  Welcome welcome;
  Assignment assignment;

  explicit Agent(std::uint16_t port) : client(port) {
    say(client, hello);
    take();
  }
  // Comes back after a loss of its connection, with its workers still running.
  Agent(std::uint16_t port, const Agent& before) : client(port), hello(before.hello) {
    hello.instance = before.welcome.instance;
    hello.status = {.phase = AgentPhase::kRunning, .generation = before.assignment.generation};
    hello.assignment = before.assignment;
    say(client, hello);
    take();
  }
  void take() {
    const auto welcomed = await<Welcome>(client);
    const auto assigned = welcomed ? await<Assignment>(client) : std::nullopt;
    ASSERT_TRUE(assigned);
    welcome = *welcomed;
    assignment = *assigned;
    EXPECT_EQ(assignment.term, welcome.term);
  }
  // Expects that the next service goes on with the same job.
  void expect_same_job(const Agent& before) const {
    EXPECT_EQ(welcome.instance, before.welcome.instance);
    EXPECT_EQ(assignment.generation, before.assignment.generation);
    EXPECT_EQ(assignment.restart_count, before.assignment.restart_count);
    EXPECT_GE(welcome.term, before.welcome.term);
  }
};

TEST_F(SeveralServices, AStandbyNamesTheLeaderAndSucceedsIt) {
  const auto first = leader();
  ASSERT_TRUE(first) << all_err();
  const std::string address = ports_[*first].endpoint();
  EXPECT_EQ(page(*first, "/readyz").body, "ok\n");
  EXPECT_THAT(page(*first, "/metrics").body, HasSubstr("\nddprun_leader 1\n"));
  for (std::size_t i = 0; i < kServices; ++i) {
    if (i == *first) continue;
    ASSERT_TRUE(becomes(i, "standby")) << all_err();
    EXPECT_EQ(page(i, "/leader").status, 503);
    EXPECT_THAT(page(i, "/metrics").body, HasSubstr("\nddprun_leader 0\n"));
    const HttpReply status = page(i, "/status.json");
    EXPECT_EQ(status.status, 307);
    EXPECT_THAT(status.head, HasSubstr("Location: http://" + address + "/status.json\r\n"));
    EXPECT_THAT(page(i, "/output/3?job=j").head,
                HasSubstr("Location: http://" + address + "/output/3?job=j\r\n"));
    RawTcpClient client(ports_[i].port());
    say(client, hello_of("job", "a"));
    const ServiceMessage answer = next_message(client);
    ASSERT_TRUE(std::holds_alternative<Silence>(answer));
    EXPECT_EQ(std::get<Silence>(answer).leader, address);
    EXPECT_TRUE(client.is_closed());
  }
  const Agent before(ports_[*first].port());
  EXPECT_GT(before.welcome.term, 0);
  end(*services_[*first]);
  services_[*first].reset();
  const auto second = leader();
  ASSERT_TRUE(second) << all_err();
  const Agent after(ports_[*second].port(), before);
  after.expect_same_job(before);
  EXPECT_GT(after.welcome.term, before.welcome.term);
}

// Its lease would keep the others out for longer.
TEST_F(SeveralServices, AKilledLeaderIsSucceededBeforeItsLeaseIsOver) {
  const auto first = leader();
  ASSERT_TRUE(first) << all_err();
  for (std::size_t i = 0; i < kServices; ++i) {
    ASSERT_TRUE(i == *first || becomes(i, "standby")) << all_err();
  }
  const Agent before(ports_[*first].port());
  kill_service(*first);
  const auto second = leader(std::nullopt, Leadership::kLease - Leadership::kKeepPause);
  ASSERT_TRUE(second) << all_err();
  Agent(ports_[*second].port(), before).expect_same_job(before);
  start_service(*first);
  EXPECT_TRUE(becomes(*first, "standby")) << all_err();
}

TEST_F(SeveralServices, AFrozenLeaderIsSucceededAndSaysNothingWhenItGoesOn) {
  const auto first = leader();
  ASSERT_TRUE(first) << all_err();
  Agent before(ports_[*first].port());
  services_[*first]->signal(SIGSTOP);
  const auto second = leader(*first);
  ASSERT_TRUE(second) << all_err();
  Agent(ports_[*second].port(), before).expect_same_job(before);
  say(before.client, Heartbeat{1});
  services_[*first]->signal(SIGCONT);
  const ServiceMessage last = next_message(before.client);
  EXPECT_FALSE(std::holds_alternative<HeartbeatAck>(last));
  EXPECT_TRUE(becomes(*first, "standby")) << all_err();
}

TEST_F(SeveralServices, WithoutEtcdTheLeaderIsSilentAndKeepsItsAgents) {
  const auto first = leader();
  ASSERT_TRUE(first) << all_err();
  Agent agent(ports_[*first].port());
  say(agent.client, Heartbeat{1});
  ASSERT_TRUE(await<HeartbeatAck>(agent.client));
  etcd_->freeze("0");
  ASSERT_TRUE(becomes(*first, "etcd does not answer in time")) << all_err();
  EXPECT_EQ(page(*first, "/leader").status, 503);
  say(agent.client, Heartbeat{2});
  // The service has read the heartbeat before it answers this.
  ASSERT_TRUE(becomes(*first, "etcd does not answer in time")) << all_err();
  EXPECT_FALSE(agent.client.has_bytes());
  etcd_->thaw("0");
  // It leads in the same term again, or another one does.
  const auto next = leader();
  ASSERT_TRUE(next) << all_err();
  Agent(ports_[*next].port(), agent).expect_same_job(agent);
}

// Many agents come at once when their leader is killed. If a standby sent them away before it knows
// the next leader, they would come again several times a second, and delay the election.
TEST_F(SeveralServices, DuringAnElectionAStandbyLetsAgentsWait) {
  const auto first = leader();
  ASSERT_TRUE(first) << all_err();
  const std::size_t standby = (*first + 1) % kServices;
  ASSERT_TRUE(becomes(standby, "standby")) << all_err();
  const Agent before(ports_[*first].port());
  etcd_->freeze("0");
  kill_service(*first);
  ASSERT_TRUE(services_[standby]->wait_for_err("the leader's process is gone")) << all_err();
  const auto begin = BootClock::now();
  RawTcpClient sent_away(ports_[standby].port());
  say(sent_away, before.hello);
  EXPECT_TRUE(std::holds_alternative<Silence>(next_message(sent_away)));
  EXPECT_GE(BootClock::now() - begin, std::chrono::milliseconds(900));

  RawTcpClient waiting(ports_[standby].port());
  say(waiting, before.hello);
  etcd_->thaw("0");
  ASSERT_TRUE(leader()) << all_err();
  const ServiceMessage answer = next_message(waiting);
  if (const Silence* silence = std::get_if<Silence>(&answer)) {
    EXPECT_TRUE(!silence->leader.empty() || BootClock::now() - begin >= std::chrono::seconds(2));
  } else {
    EXPECT_TRUE(std::holds_alternative<Welcome>(answer));
  }
}

// An agent that comes to a standby with the leader's term has lost that leader. So the leader's
// address does not help it.
TEST_F(SeveralServices, AnAgentThatHasLostTheLeaderWaitsAtAStandbyForTheNextOne) {
  const auto first = leader();
  ASSERT_TRUE(first) << all_err();
  const std::size_t standby = (*first + 1) % kServices;
  ASSERT_TRUE(becomes(standby, "standby")) << all_err();
  const Agent before(ports_[*first].port());
  Hello hello = before.hello;
  hello.instance = before.welcome.instance;
  hello.assignment = before.assignment;
  const auto begin = BootClock::now();
  RawTcpClient client(ports_[standby].port());
  say(client, hello);
  const ServiceMessage answer = next_message(client);
  ASSERT_TRUE(std::holds_alternative<Silence>(answer));
  EXPECT_EQ(std::get<Silence>(answer).leader, ports_[*first].endpoint());
  EXPECT_GE(BootClock::now() - begin, std::chrono::milliseconds(900));
}

TEST_F(SeveralServices, AServiceThatStartsWithoutEtcdWaitsForIt) {
  for (auto& service : services_) {
    end(*service);
    service.reset();
  }
  etcd_->kill("0");
  start_service(0);
  EXPECT_TRUE(services_[0]->wait_for_err("ask etcd at 127.0.0.1:")) << services_[0]->err();
  EXPECT_EQ(page(0, "/readyz").status, 503);
  EXPECT_EQ(page(0, "/healthz").status, 200);
  etcd_->start("0");
  EXPECT_EQ(leader(), 0u) << all_err();
}

// Each one could take the other for its own earlier run, whose lease it gives back.
TEST_F(SeveralServices, TwoWithOneAddressDoNotUnseatEachOther) {
  for (auto& service : services_) {
    end(*service);
    service.reset();
  }
  const Arguments options{"--listen=127.0.0.1:0", "--advertise=127.0.0.1:9", state()};
  const auto one = start_rendezvous(options);
  ASSERT_TRUE(one->wait_for_err("leads in term")) << one->err();
  const auto two = start_rendezvous(options);
  EXPECT_TRUE(one->wait_for_err("another service leads with the address of this one"))
      << one->err() << two->err();
  EXPECT_TRUE(two->wait_for_err("leads in term")) << two->err();
  end(*one);
  end(*two);
}

TEST_F(SeveralServices, CommandsWorkThroughAStandby) {
  const auto first = leader();
  ASSERT_TRUE(first) << all_err();
  const Agent agent(ports_[*first].port());
  const std::size_t standby = (*first + 1) % kServices;
  ASSERT_TRUE(becomes(standby, "standby")) << all_err();
  const std::string of_standby = "--rdzv-endpoint=" + ports_[standby].endpoint();
  const auto status = start({"status", of_standby, "job"});
  EXPECT_EQ(status->wait(), 0) << status->err();
  EXPECT_THAT(status->out(), HasSubstr("job"));
  const auto logs = start({"logs", of_standby, "job"});
  EXPECT_EQ(logs->wait(), 74);
  EXPECT_THAT(logs->err(), HasSubstr("too old to send it: ddprun on a"))
      << "the leader's answer about the agent of this test";
  const auto lost = start({"restart", of_standby, "job"});
  EXPECT_EQ(lost->wait(), 66);
  EXPECT_THAT(lost->err(), HasSubstr(ports_[*first].endpoint() +
                                     " leads (give --rdzv-endpoint that address, or those of all "
                                     "services)"));
  const auto restart = start({"restart", of_standby + "," + ports_[*first].endpoint(), "job"});
  EXPECT_EQ(restart->wait(), 0) << restart->err();
}

class EtcdWithTls : public RendezvousTest {};

TEST_F(EtcdWithTls, AServiceShowsItsCertificate) {
  if (const std::string why = EtcdCluster::why_not(); !why.empty()) GTEST_SKIP() << why;
  EtcdCluster etcd(1, EtcdCluster::Tls::kYes);
  const std::string state = "--state=etcd://" + to_text(etcd.endpoints().at(0));
  const Arguments options{"--listen=127.0.0.1:0", state, "--etcd-ca=" + etcd.tls_file("ca.crt")};
  const auto without = start_rendezvous(options);
  EXPECT_TRUE(without->wait_for_err("ask etcd at 127.0.0.1:")) << without->err();
  EXPECT_EQ(without->err().find("leads in term"), std::string::npos);
  const auto with =
      start_rendezvous(joined(options, {"--etcd-cert=" + etcd.tls_file("client.crt"),
                                        "--etcd-key=" + etcd.tls_file("client.key")}));
  EXPECT_TRUE(with->wait_for_err("leads in term")) << with->err();
  end(*with);
  end(*without);
}

TEST_F(EtcdWithTls, AServiceReadsARenewedCertificateWithoutBeingTold) {
  if (const std::string why = EtcdCluster::why_not(); !why.empty()) GTEST_SKIP() << why;
  EtcdCluster etcd(1, EtcdCluster::Tls::kYes);
  const TemporaryDirectory files;
  const Authority etcds(files.path(), etcd.tls_file("ca.crt"), etcd.tls_file("ca.key"));
  const IssuedFiles client = etcds.issue("client", {.valid_for = std::chrono::seconds(-1)});
  const auto service =
      start_rendezvous({"--listen=127.0.0.1:0", "--state=etcd://" + to_text(etcd.endpoints().at(0)),
                        "--etcd-ca=" + etcd.tls_file("ca.crt"), "--etcd-cert=" + client.cert,
                        "--etcd-key=" + client.key});
  EXPECT_TRUE(service->wait_for_err("ask etcd at 127.0.0.1:")) << service->err();
  etcds.issue("client");
  EXPECT_TRUE(service->wait_for_err("leads in term")) << service->err();
  end(*service);
}

// Agents know all three services. Each round has a fault of the leader, at a random moment. The
// workers must not notice: they are started once.
TEST_F(SeveralServices, WorkersOutliveEachLeader) {
  const std::uint64_t seed = test_seed(20261128);
  SCOPED_TRACE(seed_text(seed));
  Rng rng(seed);
  std::string all;
  for (const HeldPort& port : ports_) all += "," + port.endpoint();
  const std::string script = until_go_after("echo started $TORCHELASTIC_RESTART_COUNT");
  const TimePoint begun = BootClock::now();
  const auto one = start(node(
      all.substr(1), {"--max-restarts=3", "--report-file=" + directory_ / "report.json"}, script));
  const auto two = start(node(all.substr(1), {"--max-restarts=3"}, script));
  ASSERT_TRUE(one->wait_for_out("started 0")) << one->err() << all_err();
  ASSERT_TRUE(two->wait_for_out("started 0")) << two->err() << all_err();
  const auto first = leader();
  ASSERT_TRUE(first) << all_err();
  // The service knows that the workers run.
  ASSERT_TRUE(eventually([&] {
    // The leader may change meanwhile.
    const auto status = nlohmann::json::parse(page(*first, "/status.json").body, nullptr, false);
    if (!status.is_object() || status.value("jobs", nlohmann::json::array()).empty()) return false;
    return status["jobs"].back()["times"]["causes_ms"]["training"].get<std::int64_t>() > 0;
  })) << all_err();
  const TimePoint started = BootClock::now();
  for (std::uint64_t left = number_from("DDPRUN_SERVICE_ROUNDS", 3); left > 0; --left) {
    const auto now = leader();
    ASSERT_TRUE(now) << all_err();
    let_pass(up_to(std::chrono::milliseconds(500), rng));
    switch (left % 3) {
      case 0: kill_service(*now); break;
      case 1: services_[*now]->signal(SIGSTOP); break;
      case 2:
        end(*services_[*now]);
        services_[*now].reset();
        break;
    }
    const auto next = leader(*now);
    ASSERT_TRUE(next) << all_err();
    EXPECT_TRUE(eventually([&] {
      return page(*next, "/metrics").body.find("\nddprun_members 2\n") != std::string::npos;
    })) << one->err()
        << all_err();
    if (services_[*now]) {
      services_[*now]->signal(SIGCONT);
    } else {
      start_service(*now);
    }
    EXPECT_TRUE(becomes(*now, "standby")) << all_err();
  }
  const Duration worked = BootClock::now() - started;
  let_go();
  EXPECT_EQ(one->wait(), 0) << one->err() << all_err();
  EXPECT_EQ(two->wait(), 0) << two->err() << all_err();
  expect_books(worked, BootClock::now() - begun);
  EXPECT_THAT(lines_of(one->out()), ElementsAre(HasSubstr("started 0"))) << one->err() << all_err();
  EXPECT_THAT(lines_of(two->out()), ElementsAre(HasSubstr("started 0"))) << two->err() << all_err();
}

}  // namespace
}  // namespace ddprun::testing_support
