// The handshake, from both sides.
#include "rendezvous/core/handshake.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ddprun {
namespace {

using testing::HasSubstr;

constexpr const char* kKey = "0123456789abcdef";
constexpr const char* kOtherKey = "fedcba9876543210";

Keyring keys(const std::string& text) { return Keyring::parse(text).value(); }

class HandshakeTest : public testing::Test {
 protected:
  using What = ServiceHandshake::Step::What;
  static Knock knock(const std::string& job = "job") {
    return {.version = "0.1", .job = job, .nonce = "agent-nonce"};
  }
  static std::string refusal(const ServiceHandshake::Step& step) {
    return step.what == What::kRefuse ? std::get<Refused>(step.answer).reason : "not refused";
  }

  ServiceHandshake service_{keys(kKey), "service-nonce"};
  AgentHandshake agent_{kKey, knock()};
};

TEST_F(HandshakeTest, ProvesTheKeyInBothDirections) {
  EXPECT_TRUE(service_.is_closed());
  const auto challenge = service_.receive(agent_.knock());
  ASSERT_EQ(challenge.what, What::kAnswer);
  const auto proof = agent_.receive(challenge.answer);
  ASSERT_TRUE(proof);
  const auto proven = service_.receive(std::get<Proof>(*proof));
  ASSERT_EQ(proven.what, What::kAnswer);
  EXPECT_FALSE(service_.is_closed());
  EXPECT_FALSE(agent_.is_over());
  ASSERT_TRUE(agent_.receive(proven.answer));
  EXPECT_TRUE(agent_.is_over());
  EXPECT_EQ(service_.receive(NoHandshake()).what, What::kPass);
  EXPECT_TRUE(service_.may_join("job"));
  EXPECT_FALSE(service_.may_join("another"));
}

TEST_F(HandshakeTest, WithoutTheKeyNobodyIsLetIn) {
  AgentHandshake stranger(kOtherKey, knock());
  const auto proof = stranger.receive(service_.receive(stranger.knock()).answer);
  EXPECT_THAT(refusal(service_.receive(std::get<Proof>(*proof))),
              HasSubstr("is not the key that this service has for job 'job'"));
  EXPECT_TRUE(service_.is_closed());
}

TEST_F(HandshakeTest, AProofIsWorthNothingOnAnotherConnection) {
  const auto proof = agent_.receive(service_.receive(agent_.knock()).answer);
  ServiceHandshake again(keys(kKey), "another-nonce");
  ASSERT_EQ(again.receive(agent_.knock()).what, What::kAnswer);
  EXPECT_EQ(again.receive(std::get<Proof>(*proof)).what, What::kRefuse);
}

TEST_F(HandshakeTest, AProofIsWorthNothingForAnotherJob) {
  const auto proof = agent_.receive(service_.receive(agent_.knock()).answer);
  ServiceHandshake again(keys(kKey), "service-nonce");
  ASSERT_EQ(again.receive(knock("another")).what, What::kAnswer);
  EXPECT_EQ(again.receive(std::get<Proof>(*proof)).what, What::kRefuse);
}

TEST_F(HandshakeTest, AJobsOwnKeyCountsForItAlone) {
  ServiceHandshake service(keys(std::string(kKey) + "\nown " + kOtherKey), "n");
  AgentHandshake agent(kKey, knock("own"));
  const auto proof = agent.receive(service.receive(agent.knock()).answer);
  EXPECT_EQ(service.receive(std::get<Proof>(*proof)).what, What::kRefuse);
  ServiceHandshake closed(keys(std::string("own ") + kOtherKey), "n");
  EXPECT_THAT(refusal(closed.receive(knock("job"))), HasSubstr("has no key for job 'job'"));
}

TEST_F(HandshakeTest, NothingElseIsHeardBeforeTheProof) {
  EXPECT_THAT(refusal(service_.receive(NoHandshake())), HasSubstr("--rdzv-key-file"));
  ServiceHandshake challenged(keys(kKey), "n");
  challenged.receive(knock());
  EXPECT_EQ(challenged.receive(NoHandshake()).what, What::kRefuse);
  ServiceHandshake unasked(keys(kKey), "n");
  EXPECT_EQ(unasked.receive(Proof{"x"}).what, What::kRefuse);
  ServiceHandshake twice(keys(kKey), "n");
  twice.receive(knock());
  EXPECT_EQ(twice.receive(knock()).what, What::kRefuse);
}

TEST_F(HandshakeTest, OncePerConnection) {
  service_.receive(std::get<Proof>(*agent_.receive(service_.receive(agent_.knock()).answer)));
  ASSERT_FALSE(service_.is_closed());
  EXPECT_EQ(service_.receive(knock()).what, What::kRefuse);
}

TEST_F(HandshakeTest, AServiceWithoutKeysHearsThoseWithoutAndSaysSoToTheOthers) {
  ServiceHandshake open(Keyring(), "n");
  EXPECT_FALSE(open.is_closed());
  EXPECT_EQ(open.receive(NoHandshake()).what, What::kPass);
  EXPECT_TRUE(open.may_join("any"));
  EXPECT_THAT(refusal(open.receive(knock())), HasSubstr("this service has no key"));
}

TEST_F(HandshakeTest, AnotherProtocolIsRefusedInWords) {
  Knock other = knock();
  other.protocol = kControlProtocol + 1;
  EXPECT_THAT(refusal(service_.receive(other)), HasSubstr("use the same ddprun on all nodes"));
}

TEST_F(HandshakeTest, AnAgentBelievesNoServiceThatDoesNotHoldTheKey) {
  ServiceHandshake impostor(keys(kOtherKey), "n");
  const auto challenge = impostor.receive(agent_.knock());
  ASSERT_TRUE(agent_.receive(challenge.answer));
  const Introduction seen{kControlProtocol, "0.1", "job", "agent-nonce", "n"};
  const auto believed = agent_.receive(Proven{proof_of(Side::kService, kOtherKey, seen)});
  ASSERT_FALSE(believed);
  EXPECT_EQ(believed.error().kind, ErrorKind::kProtocol);
  EXPECT_FALSE(agent_.is_over());
}

TEST_F(HandshakeTest, AnAgentsOwnProofIsNoProofOfTheService) {
  const auto proof = agent_.receive(Challenge{"n"});
  EXPECT_FALSE(agent_.receive(Proven{std::get<Proof>(*proof).proof}));
}

TEST_F(HandshakeTest, AServiceThatSkipsItsPartIsNotBelieved) {
  for (const ServiceHandshakeMessage& early :
       {ServiceHandshakeMessage(NoHandshake()), ServiceHandshakeMessage(Proven{"x"})}) {
    AgentHandshake agent(kKey, knock());
    EXPECT_FALSE(agent.receive(early));
  }
  ASSERT_TRUE(agent_.receive(Challenge{"n"}));
  EXPECT_FALSE(agent_.receive(Challenge{"n"})) << "nobody gets two proofs";
}

TEST_F(HandshakeTest, ARefusalIsHandedOn) {
  const auto refused = agent_.receive(Refused{"why"});
  ASSERT_TRUE(refused);
  EXPECT_EQ(std::get<Refused>(*refused).reason, "why");
}

}  // namespace
}  // namespace ddprun
