// Tests both sides of the handshake.
#include "rendezvous/protocol/core/handshake.h"

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
  AgentHandshake unauthenticated(kOtherKey, knock());
  const auto proof = unauthenticated.receive(service_.receive(unauthenticated.knock()).answer);
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

// A man in the middle has a TLS connection with each side, and forwards what they send.
TEST_F(HandshakeTest, AProofIsWorthNothingOnAnotherTlsConnection) {
  AgentHandshake agent(kKey, knock(), "channel of the agent");
  service_.bind_to("channel of the service");
  const auto proof = agent.receive(service_.receive(agent.knock()).answer);
  EXPECT_EQ(service_.receive(std::get<Proof>(*proof)).what, What::kRefuse);
  ServiceHandshake same(keys(kKey), "service-nonce");
  same.bind_to("channel of the agent");
  ASSERT_EQ(same.receive(agent.knock()).what, What::kAnswer);
  EXPECT_EQ(same.receive(std::get<Proof>(*proof)).what, What::kAnswer);
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

// --- by munge ---

constexpr UserId kServiceUser{64};
constexpr UserId kAgentUser{1000};

// MungeHandshakeTest: simulates a munged that both sides can ask. A credential names its maker
// and its reader.
class MungeHandshakeTest : public HandshakeTest {
 protected:
  static MungeOutcome munge(const MungeTask& task, UserId own) {
    if (const auto* make = std::get_if<MakeCredential>(&task)) {
      return MungeAnswer{to_text(own) + "/" + to_text(make->reader) + "/" + make->statement, own};
    }
    const std::string& text = std::get<ReadCredential>(task).credential;
    const auto reader = text.find('/');
    const auto statement = text.find('/', reader + 1);
    if (text.substr(reader + 1, statement - reader - 1) != to_text(own)) return unauthorized();
    return MungeAnswer{text.substr(statement + 1),
                       UserId(static_cast<std::uint32_t>(std::stoul(text)))};
  }
  static Error unauthorized() {
    return {.kind = ErrorKind::kProtocol, .doing = "read", .cause = "made for another user"};
  }
  static Error munged_is_dead() {
    return {.kind = ErrorKind::kConnection, .doing = "ask munge", .cause = "no munged"};
  }
  // Returns the Proof of an agent for this challenge.
  static std::string proof_for(AgentHandshake& agent, const ServiceHandshakeMessage& challenge,
                               UserId own = kAgentUser) {
    const auto task = agent.receive(challenge);
    const auto proof = agent.answered(munge(std::get<MungeTask>(task.value()), own));
    return std::get<Proof>(proof.value()).proof;
  }
  // Returns the service's step after munge has read the proof.
  static ServiceHandshake::Step read(ServiceHandshake& service, const std::string& proof) {
    const ServiceHandshake::Step step = service.receive(Proof{proof});
    EXPECT_EQ(step.what, What::kAskMunge);
    return service.answered(munge(step.task, kServiceUser));
  }

  ServiceHandshake service_{Keyring(), "service-nonce", kServiceUser};
  AgentHandshake agent_{{}, knock(), "", {kAgentUser}};
};

TEST_F(MungeHandshakeTest, ProvesUsersInBothDirections) {
  EXPECT_TRUE(service_.is_closed());
  const std::string proof = proof_for(agent_, service_.receive(agent_.knock()).answer);
  const auto make = read(service_, proof);
  ASSERT_EQ(make.what, What::kAskMunge);
  EXPECT_FALSE(service_.proven_user());
  const auto proven = service_.answered(munge(make.task, kServiceUser));
  ASSERT_EQ(proven.what, What::kAnswer);
  EXPECT_FALSE(service_.is_closed());
  EXPECT_EQ(service_.proven_user(), kAgentUser);
  EXPECT_FALSE(service_.may_join("another"));
  EXPECT_FALSE(agent_.is_time_for_hello()) << "the service has not proved itself yet";
  const auto task = agent_.receive(proven.answer);
  ASSERT_TRUE(agent_.answered(munge(std::get<MungeTask>(*task), kAgentUser)));
  EXPECT_TRUE(agent_.is_over());
  EXPECT_TRUE(agent_.is_time_for_hello());
  EXPECT_EQ(service_.receive(NoHandshake()).what, What::kPass);
}

TEST_F(MungeHandshakeTest, ACredentialIsWorthNothingOnAnotherConnection) {
  const std::string proof = proof_for(agent_, service_.receive(agent_.knock()).answer);
  ServiceHandshake again(Keyring(), "another-nonce", kServiceUser);
  again.receive(agent_.knock());
  EXPECT_THAT(refusal(read(again, proof)), HasSubstr("made for another connection"));
  EXPECT_FALSE(again.proven_user());
}

TEST_F(MungeHandshakeTest, ACredentialIsWorthNothingOnAnotherTlsConnection) {
  AgentHandshake agent({}, knock(), "channel of the agent", {kAgentUser});
  service_.bind_to("channel of the service");
  const std::string proof = proof_for(agent, service_.receive(agent.knock()).answer);
  EXPECT_THAT(refusal(read(service_, proof)), HasSubstr("made for another connection"));
  ServiceHandshake same(Keyring(), "service-nonce", kServiceUser);
  same.bind_to("channel of the agent");
  same.receive(agent.knock());
  EXPECT_EQ(read(same, proof).what, What::kAskMunge) << "for its own half of the proof";
}

TEST_F(MungeHandshakeTest, ACredentialThatMungeDoesNotVouchForIsAFailureOfThePeer) {
  service_.receive(agent_.knock());
  ASSERT_EQ(service_.receive(Proof{"garbage"}).what, What::kAskMunge);
  EXPECT_THAT(refusal(service_.answered(unauthorized())), HasSubstr("made for another user"));
}

TEST_F(MungeHandshakeTest, MungesOwnTroubleIsNobodysFault) {
  const std::string proof = proof_for(agent_, service_.receive(agent_.knock()).answer);
  ServiceHandshake dead = service_;
  ASSERT_EQ(dead.receive(Proof{proof}).what, What::kAskMunge);
  const auto put_off = dead.answered(munged_is_dead());
  EXPECT_EQ(put_off.what, What::kPutOff);
  EXPECT_THAT(std::get<Silence>(put_off.answer).reason, HasSubstr("no munged"));
  ASSERT_EQ(read(service_, proof).what, What::kAskMunge);
  EXPECT_EQ(service_.answered(unauthorized()).what, What::kPutOff)
      << "its own credential is not the peer's";
  EXPECT_FALSE(service_.proven_user());
  const auto silence = agent_.receive(put_off.answer);
  EXPECT_TRUE(std::holds_alternative<Silence>(*silence)) << "it tries again later";
}

TEST_F(MungeHandshakeTest, NothingIsHeardWhileMungeIsAsked) {
  const std::string proof = proof_for(agent_, service_.receive(agent_.knock()).answer);
  ASSERT_EQ(service_.receive(Proof{proof}).what, What::kAskMunge);
  EXPECT_EQ(service_.receive(NoHandshake()).what, What::kRefuse);
  EXPECT_EQ(service_.receive(Proof{proof}).what, What::kRefuse);
}

TEST_F(MungeHandshakeTest, WhoHasNoMungeIsToldWhatToDo) {
  const std::string reason = refusal(service_.receive(NoHandshake()));
  EXPECT_THAT(reason, HasSubstr("--rdzv-key-file"));
  EXPECT_THAT(reason, HasSubstr("--munge-socket none"));
  ServiceHandshake another(Keyring(), "n", kServiceUser);
  EXPECT_THAT(refusal(another.receive(knock())), HasSubstr("this service has no key"));
}

TEST_F(MungeHandshakeTest, KeysBeatMunge) {
  ServiceHandshake keyed(keys(kKey), "n", kServiceUser);
  EXPECT_THAT(refusal(keyed.receive(agent_.knock())), HasSubstr("requires a key"));
  ServiceHandshake again(keys(kKey), "n", kServiceUser);
  const auto challenge = again.receive(knock());
  EXPECT_FALSE(std::get<Challenge>(challenge.answer).user);
}

TEST_F(MungeHandshakeTest, AnOpenServiceSaysSoAndTheAgentGoesOnUnlessItDemandsMore) {
  ServiceHandshake open{Keyring(), "n"};
  const auto answer = open.receive(agent_.knock());
  ASSERT_EQ(answer.what, What::kAnswer);
  AgentHandshake strict({}, knock(), "", {.own = kAgentUser, .demands_proof = true});
  const auto distrusts = strict.receive(answer.answer);
  ASSERT_FALSE(distrusts);
  EXPECT_EQ(distrusts.error().kind, ErrorKind::kUnsupported);
  ASSERT_TRUE(agent_.receive(answer.answer));
  EXPECT_TRUE(agent_.is_over() && agent_.is_time_for_hello());
  EXPECT_EQ(open.receive(agent_.knock()).what, What::kRefuse) << "once";
  EXPECT_EQ(open.receive(NoHandshake()).what, What::kPass);
  AgentHandshake keyed(kKey, knock());
  EXPECT_FALSE(keyed.receive(answer.answer)) << "a key is not given up for a word";
}

TEST_F(MungeHandshakeTest, AnAgentBelievesItsOwnUserRootAndSystemAccountsOnly) {
  EXPECT_TRUE(is_believable(kAgentUser, kAgentUser));
  EXPECT_TRUE(is_believable(UserId(0), kAgentUser));
  EXPECT_TRUE(is_believable(UserId(999), kAgentUser));
  EXPECT_FALSE(is_believable(UserId(1001), kAgentUser));
  EXPECT_FALSE(is_believable(UserId(1001), UserId(0))) << "root does not follow users";
  const auto distrusts = agent_.receive(Challenge{"n", UserId(1001)});
  ASSERT_FALSE(distrusts);
  EXPECT_EQ(distrusts.error().kind, ErrorKind::kUnsupported);
  EXPECT_THAT(distrusts.error().cause, HasSubstr("runs as user 1001"));
}

TEST_F(MungeHandshakeTest, AServiceThatOnlyPretendsToBeSystemIsNotBelieved) {
  proof_for(agent_, Challenge{"n", kServiceUser});
  const Introduction seen{kControlProtocol, "0.1", "job", "agent-nonce", "n"};
  const MungeTask make = MakeCredential{statement_of(Side::kService, seen), kAgentUser};
  const std::string of_another = munge(make, UserId(1001))->text;
  const auto task = agent_.receive(Proven{of_another});
  const auto believed = agent_.answered(munge(std::get<MungeTask>(*task), kAgentUser));
  ASSERT_FALSE(believed);
  EXPECT_THAT(believed.error().cause, HasSubstr("according to munge as user 1001"));
}

TEST_F(MungeHandshakeTest, AServiceThatSkipsItsPartIsNotBelievedEither) {
  for (const ServiceHandshakeMessage& early :
       {ServiceHandshakeMessage(NoHandshake()), ServiceHandshakeMessage(Proven{"x"}),
        ServiceHandshakeMessage(Challenge{"n", std::nullopt})}) {
    AgentHandshake agent({}, knock(), "", {kAgentUser});
    const auto step = agent.receive(early);
    ASSERT_FALSE(step);
    EXPECT_EQ(step.error().kind, ErrorKind::kProtocol);
  }
  const std::string proof = proof_for(agent_, Challenge{"n", kServiceUser});
  EXPECT_FALSE(agent_.receive(Open())) << "not after it was challenged";
  const auto task = agent_.receive(Proven{proof});
  EXPECT_FALSE(agent_.answered(munge(std::get<MungeTask>(*task), kAgentUser)))
      << "its own credential is none of the service's";
}

TEST_F(MungeHandshakeTest, TroubleOfTheAgentsOwnMungeIsHandedOn) {
  ASSERT_TRUE(agent_.receive(Challenge{"n", kServiceUser}));
  const auto step = agent_.answered(munged_is_dead());
  ASSERT_FALSE(step);
  EXPECT_EQ(step.error().kind, ErrorKind::kConnection);
}

}  // namespace
}  // namespace ddprun
