// Tests the rendezvous service with munge as the proof of identity: which agents are admitted,
// and which attacks fail.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "base/random_id.h"
#include "rendezvous/auth/munge.h"
#include "rendezvous/service/server.h"
#include "tests/support/control_frame.h"
#include "tests/support/hello_of.h"
#include "tests/support/http_get.h"
#include "tests/support/private_munged.h"
#include "tests/support/raw_tcp_client.h"
#include "tests/support/running_service.h"
#include "tests/support/watched_link.h"

namespace ddprun {
namespace {

using testing::HasSubstr;
using testing_support::hello_of;
using testing_support::http_get;
using testing_support::next_handshake;
using testing_support::PrivateMunged;
using testing_support::RawTcpClient;
using testing_support::reason_of;
using testing_support::RunningService;
using testing_support::say;
using testing_support::WatchedLink;

class OpenServer : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = PrivateMunged::missing(); !why.empty()) GTEST_SKIP() << why;
    munged_.emplace();
    munge_ = find_munge(munged_->options()).munge;
  }
  void TearDown() override {
    if (munged_) munged_->go_on();
  }
  // Makes an agent's link that uses munge.
  void make_link(bool demands_proof = false) {
    RemoteLinkOptions options;
    options.address = {"127.0.0.1", service_.port()};
    options.munge = munge_;
    options.demands_proof = demands_proof;
    link_.follow(std::move(options), "job");
  }

  std::optional<PrivateMunged> munged_;
  std::shared_ptr<const Munge> munge_;
  RunningService service_;
  WatchedLink link_;
};

class ServerWithMunge : public OpenServer {
 protected:
  void SetUp() override {
    OpenServer::SetUp();
    if (munge_) service_.set_munge(munge_);
  }
  AgentHandshake an_agent() const {
    return {
        {}, {.version = "v", .job = "job", .nonce = random_hex(kNonceBytes)}, "", {munge_->user()}};
  }

  // Sends a knock and lets munge do what the challenge asks for. Returns the credential.
  static std::string knock(RawTcpClient& client, AgentHandshake& agent, const Munge& munge) {
    say(client, agent.knock());
    const auto task = agent.receive(next_handshake(client));
    const auto proof = agent.answered(munge.carry_out(std::get<MungeTask>(task.value())));
    return std::get<Proof>(proof.value()).proof;
  }
};

TEST_F(ServerWithMunge, WhoProvesHisUserJoins) {
  RawTcpClient client(service_.port());
  AgentHandshake agent = an_agent();
  say(client, Proof{knock(client, agent, *munge_)});
  const ServiceHandshakeMessage proven = next_handshake(client);
  ASSERT_TRUE(std::holds_alternative<Proven>(proven)) << reason_of(proven);
  const auto task = agent.receive(proven);
  ASSERT_TRUE(agent.answered(munge_->carry_out(std::get<MungeTask>(task.value()))));
  say(client, hello_of("job", "a"));
  client.receive(1);
  service_.on_thread([&] { EXPECT_TRUE(service_.server().jobs().find("job")); });
}

TEST_F(ServerWithMunge, NoBrowserReadsWhatWorkersWrite) {
  EXPECT_EQ(http_get(service_.port(), "/status.json").status, 200);
  EXPECT_EQ(http_get(service_.port(), "/output/0?job=job").status, 403);
  EXPECT_EQ(http_get(service_.port(), "/flight/0?job=job").status, 403);
}

// An eavesdropper could replay a credential. The munged of this service has already seen it, but
// the munged of another node has not.
TEST_F(ServerWithMunge, ACredentialThatIsSentAgainIsWorthNothing) {
  AgentHandshake agent = an_agent();
  RawTcpClient first(service_.port());
  const std::string credential = knock(first, agent, *munge_);
  say(first, Proof{credential});
  ASSERT_TRUE(std::holds_alternative<Proven>(next_handshake(first)));

  RawTcpClient again(service_.port());
  say(again, agent.knock());
  ASSERT_TRUE(std::holds_alternative<Challenge>(next_handshake(again)));
  say(again, Proof{credential});
  EXPECT_THAT(reason_of(next_handshake(again)),
              HasSubstr("munge rejects the credential of this node"));

  const PrivateMunged other_node;
  RunningService other_service;
  other_service.set_munge(find_munge(other_node.options()).munge);
  RawTcpClient elsewhere(other_service.port());
  say(elsewhere, agent.knock());
  ASSERT_TRUE(std::holds_alternative<Challenge>(next_handshake(elsewhere)));
  say(elsewhere, Proof{credential});
  EXPECT_THAT(reason_of(next_handshake(elsewhere)), HasSubstr("made for another connection"));
  EXPECT_TRUE(elsewhere.is_closed());
}

TEST_F(ServerWithMunge, ACredentialOfAnotherClusterIsWorthNothing) {
  const PrivateMunged other("another key");
  AgentHandshake agent = an_agent();
  RawTcpClient client(service_.port());
  say(client, Proof{knock(client, agent, *find_munge(other.options()).munge)});
  EXPECT_THAT(reason_of(next_handshake(client)), HasSubstr("made with another munge key"));
  EXPECT_TRUE(client.is_closed());
}

TEST_F(ServerWithMunge, NeitherAreThoseWithAnotherNonceNorGarbage) {
  const Introduction wrong{kControlProtocol, "v", "job", "agent-nonce", "a nonce of my own"};
  const std::string forged =
      munge_->carry_out(MakeCredential{statement_of(Side::kAgent, wrong), munge_->user()})->text;
  for (const std::string& proof : {forged, std::string("MUNGE:garbage:"), std::string()}) {
    RawTcpClient client(service_.port());
    say(client,
        Knock{.method = ProofMethod::kMunge, .version = "v", .job = "job", .nonce = "agent-nonce"});
    ASSERT_TRUE(std::holds_alternative<Challenge>(next_handshake(client)));
    say(client, Proof{proof});
    EXPECT_NE(reason_of(next_handshake(client)), "not refused") << proof;
    EXPECT_TRUE(client.is_closed());
  }
  service_.on_thread([&] { EXPECT_TRUE(service_.server().jobs().jobs().empty()); });
}

TEST_F(ServerWithMunge, WhoCannotAskMungeIsToldWhatToDo) {
  RawTcpClient client(service_.port());
  say(client, hello_of("job", "a"));
  EXPECT_THAT(reason_of(next_handshake(client)), HasSubstr("--munge-socket none"));
  EXPECT_TRUE(client.is_closed());
}

TEST_F(ServerWithMunge, WhileMungedHangsTheServiceAnswersOthersAndPutsNewcomersOff) {
  AgentHandshake agent = an_agent();
  RawTcpClient client(service_.port());
  const std::string credential = knock(client, agent, *munge_);
  munged_->hang();
  say(client, Proof{credential});
  EXPECT_EQ(testing_support::http_get(service_.port(), "/healthz").status, 200);
  { RawTcpClient gone(service_.port()); }
  const ServiceHandshakeMessage said = next_handshake(client);
  const Silence* silence = std::get_if<Silence>(&said);
  ASSERT_TRUE(silence) << reason_of(said);
  EXPECT_THAT(silence->reason, HasSubstr("munged does not answer"));
  EXPECT_TRUE(client.is_closed());
}

// --- with an agent's link ---

TEST_F(ServerWithMunge, BothProveThemselvesAndTheJobIsItsUsers) {
  make_link(true);
  ASSERT_TRUE(link_.is_directed()) << link_.trouble;
}

TEST_F(ServerWithMunge, ComesInWhenMungedIsBack) {
  munged_->kill();
  make_link();
  link_.io.run_for(std::chrono::milliseconds(200));
  EXPECT_EQ(link_.directives, 0);
  munged_->start();
  EXPECT_TRUE(link_.is_directed()) << link_.trouble << link_.waits_for;
}

TEST_F(OpenServer, IsJoinedByAnAgentWithMunge) {
  make_link();
  EXPECT_TRUE(link_.is_directed()) << link_.trouble;
}

TEST_F(OpenServer, IsNotJoinedByOneThatDemandsProof) {
  make_link(true);
  ASSERT_TRUE(link_.gets_into_trouble());
  EXPECT_THAT(link_.trouble, HasSubstr("it admits every node"));
  EXPECT_EQ(link_.directives, 0);
}

}  // namespace
}  // namespace ddprun
