// The rendezvous service where munge says who agents are: who is let in, and what is tried on it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "base/random_id.h"
#include "rendezvous/munge.h"
#include "rendezvous/server.h"
#include "rendezvous/service_link.h"
#include "tests/support/control_frame.h"
#include "tests/support/eventually.h"
#include "tests/support/hello_of.h"
#include "tests/support/http_get.h"
#include "tests/support/private_munged.h"
#include "tests/support/raw_tcp_client.h"
#include "tests/support/running_service.h"

namespace ddprun {
namespace {

using testing::HasSubstr;
using testing_support::eventually_on;
using testing_support::hello_of;
using testing_support::next_handshake;
using testing_support::PrivateMunged;
using testing_support::RawTcpClient;
using testing_support::reason_of;
using testing_support::RunningService;
using testing_support::say;

class ServerWithMunge : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = PrivateMunged::missing(); !why.empty()) GTEST_SKIP() << why;
    munged_.emplace();
    munge_ = find_munge(munged_->options()).munge;
    use_munge(service_, munge_);
  }
  void TearDown() override {
    if (munged_) munged_->go_on();
  }
  static void use_munge(RunningService& service, const std::shared_ptr<const Munge>& munge) {
    service.on_thread([&] { service.server().set_munge(munge); });
  }
  AgentHandshake an_agent() const {
    return {AgentHandshake::ByMunge{munge_->user()},
            {.version = "v", .job = "job", .nonce = random_hex(kNonceBytes)}};
  }

  // Knocks, and has munge do what the challenge asks for: the credential.
  static std::string knock(RawTcpClient& client, AgentHandshake& agent, const Munge& munge) {
    say(client, agent.knock());
    const auto task = agent.receive(next_handshake(client));
    const auto proof = agent.answered(munge.carry_out(std::get<MungeTask>(task.value())));
    return std::get<Proof>(proof.value()).proof;
  }

  std::optional<PrivateMunged> munged_;
  std::shared_ptr<const Munge> munge_;
  RunningService service_;
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

// What somebody has overheard: on this service munged has seen it, on another node it has not.
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
  EXPECT_THAT(reason_of(next_handshake(again)), HasSubstr("munge does not vouch for this node"));

  const PrivateMunged other_node;
  RunningService other_service;
  use_munge(other_service, find_munge(other_node.options()).munge);
  RawTcpClient elsewhere(other_service.port());
  say(elsewhere, agent.knock());
  ASSERT_TRUE(std::holds_alternative<Challenge>(next_handshake(elsewhere)));
  say(elsewhere, Proof{credential});
  EXPECT_THAT(reason_of(next_handshake(elsewhere)), HasSubstr("made for another connection"));
  EXPECT_TRUE(elsewhere.is_closed());
}

TEST_F(ServerWithMunge, ACredentialOfAnotherClusterIsWorthNothing) {
  const PrivateMunged stranger("another key");
  AgentHandshake agent = an_agent();
  RawTcpClient client(service_.port());
  say(client, Proof{knock(client, agent, *find_munge(stranger.options()).munge)});
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
  EXPECT_THAT(silence->reason, HasSubstr("munged has not answered"));
  EXPECT_TRUE(client.is_closed());
}

// --- with an agent's link ----------------------------------------------------------------------------

class LinkWithMunge : public ServerWithMunge {
 protected:
  void make_link(bool demands_proof = false) {
    RemoteLinkOptions options;
    options.address = {"127.0.0.1", service_.port()};
    options.munge = munge_;
    options.demands_proof = demands_proof;
    link_ = make_remote_link(io_, std::move(options),
                             {.hello = [](const std::string&) { return hello_of("job", "a"); },
                              .directive =
                                  [this](const Directive& directive) {
                                    if (const Wait* wait = std::get_if<Wait>(&directive)) {
                                      waits_for_ = wait->reason;
                                    } else {
                                      ++directives_;
                                    }
                                  },
                              .lost = [this](const LinkLost& lost) { trouble_ = lost.reason; },
                              .refused = [this](const std::string& why) { trouble_ = why; }});
    link_->start();
  }
  template <class Condition>
  bool run_until(Condition&& condition) {
    return eventually_on(io_, condition);
  }

  boost::asio::io_context io_{1};
  std::unique_ptr<ServiceLink> link_;
  int directives_ = 0;
  std::string waits_for_;
  std::string trouble_;
};

TEST_F(LinkWithMunge, BothProveThemselvesAndTheJobIsItsUsers) {
  make_link(true);
  ASSERT_TRUE(run_until([&] { return directives_ > 0; })) << trouble_;
}

TEST_F(LinkWithMunge, ComesInWhenMungedIsBack) {
  munged_->kill();
  make_link();
  io_.run_for(std::chrono::milliseconds(200));
  EXPECT_EQ(directives_, 0);
  munged_->start();
  EXPECT_TRUE(run_until([&] { return directives_ > 0; })) << trouble_ << waits_for_;
}

class OpenService : public LinkWithMunge {
 protected:
  void SetUp() override {
    if (const std::string why = PrivateMunged::missing(); !why.empty()) GTEST_SKIP() << why;
    munged_.emplace();
    munge_ = find_munge(munged_->options()).munge;
  }
};

TEST_F(OpenService, IsJoinedByAnAgentWithMunge) {
  make_link();
  EXPECT_TRUE(run_until([&] { return directives_ > 0; })) << trouble_;
}

TEST_F(OpenService, IsNotJoinedByOneThatDemandsProof) {
  make_link(true);
  ASSERT_TRUE(run_until([&] { return !trouble_.empty(); }));
  EXPECT_THAT(trouble_, HasSubstr("lets everybody in"));
  EXPECT_EQ(directives_, 0);
}

}  // namespace
}  // namespace ddprun
