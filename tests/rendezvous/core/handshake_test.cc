// Keys, proofs, the handshake from both sides, and those who fail it too often.
#include "rendezvous/core/handshake.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "rendezvous/core/failure_rate.h"

namespace ddprun {
namespace {

using std::chrono::seconds;
using testing::HasSubstr;
using testing::Not;

constexpr const char* kKey = "0123456789abcdef";
constexpr const char* kOtherKey = "fedcba9876543210";

Keyring keys(const std::string& text) { return Keyring::parse(text).value(); }

// --- keys ------------------------------------------------------------------------------------------

TEST(Keyring, HasOneKeyForEveryJobAndOthersForSingleOnes) {
  const Keyring ring = keys(
      "# made today\n\n  aaaaaaaaaaaaaaaa \r\njob1 bbbbbbbbbbbbbbbb\n\tjob2\tcccccccccccccccc");
  EXPECT_EQ(ring.key_of("job1"), "bbbbbbbbbbbbbbbb");
  EXPECT_EQ(ring.key_of("job2"), "cccccccccccccccc");
  EXPECT_EQ(ring.key_of("another"), "aaaaaaaaaaaaaaaa");
  EXPECT_EQ(ring.for_every_job(), "aaaaaaaaaaaaaaaa");
  EXPECT_FALSE(ring.empty());
}

TEST(Keyring, WithoutAKeyForEveryJobOthersHaveNone) {
  const Keyring ring = keys("job1 bbbbbbbbbbbbbbbb");
  EXPECT_EQ(ring.key_of("another"), std::nullopt);
  EXPECT_FALSE(ring.empty());
  EXPECT_TRUE(Keyring().empty());
}

TEST(Keyring, SaysWhatIsWrongAndNeverWhatIsWritten) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "there is no key in it"},
      {"# nothing\n\n", "there is no key in it"},
      {"short", "line 1: a key has 16 characters or more"},
      {"\nshort-secret\n", "line 2: a key has 16 characters or more"},
      {"job short-secret", "line 1: a key has 16 characters or more"},
      {"a secret-secret-secret three", "line 1: it is neither KEY nor JOB KEY"},
      {"secret-secret-secret\nsecret-secret-secreT",
       "line 2: there is a key for every job already"},
      {"j secret-secret-secret\nj secret-secret-secreT", "line 2: job 'j' has a key already"},
  };
  for (const auto& [text, expected] : cases) {
    const auto ring = Keyring::parse(text);
    ASSERT_FALSE(ring) << text;
    EXPECT_EQ(ring.error().kind, ErrorKind::kInvalidArgument);
    EXPECT_THAT(ring.error().message(), HasSubstr(expected));
    EXPECT_THAT(ring.error().message(), Not(HasSubstr("secret")));
  }
}

// --- proofs ----------------------------------------------------------------------------------------

// The digests are those of Python's hmac module over the text that proof.cc describes.
TEST(Proof, IsAnHmacOverEverythingThatWasSaid) {
  const Introduction introduction{1, "0.1", "job", "aa", "bb"};
  EXPECT_EQ(proof_of(Side::kAgent, kKey, introduction),
            "b30c793983b3aa3f34b816810e2c63373ab54bb32e1d9612fd17ac9b12e6a3e7");
  EXPECT_EQ(proof_of(Side::kService, kKey, introduction),
            "014dd169b58276be1cc16d6181b9cd489d9c94de14e25bdfb79accbc781bcf72");
  EXPECT_EQ(read_token_of(kKey),
            "8a65facf5b325d079f0d071ee3c365b0f6e8ac5e7dc39fc83af52f2bd6832d39");
}

TEST(Proof, DiffersWithEveryPartOfIt) {
  const Introduction first{1, "0.1", "job", "aa", "bb"};
  std::vector<Introduction> others(5, first);
  others[0].protocol = 2;
  others[1].version = "0.2";
  others[2].job = "jo";
  others[3].agent_nonce = "aab";  // what moves from one field to the next is seen, too
  others[3].service_nonce = "b";
  others[4].service_nonce = "ba";
  const std::string proof = proof_of(Side::kAgent, kKey, first);
  for (const Introduction& other : others) EXPECT_NE(proof_of(Side::kAgent, kKey, other), proof);
  EXPECT_NE(proof_of(Side::kAgent, kOtherKey, first), proof);
}

TEST(Proof, SecretsAreComparedWhole) {
  EXPECT_TRUE(is_same_secret("abc", "abc"));
  EXPECT_FALSE(is_same_secret("abc", "abd"));
  EXPECT_FALSE(is_same_secret("abc", "ab"));
  EXPECT_TRUE(is_same_secret("", ""));
}

// --- the handshake -----------------------------------------------------------------------------------

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

// --- those who fail too often ------------------------------------------------------------------------

class FailureRateTest : public testing::Test {
 protected:
  bool is_blocked(const std::string& address = "a") const {
    return rate_.is_blocked(address, now_);
  }
  FailureRate rate_;
  TimePoint now_{seconds(1000)};
};

TEST_F(FailureRateTest, ABurstPassesAndThenOnePerPause) {
  for (int i = 0; i < FailureRate::kBurst; ++i) {
    EXPECT_FALSE(is_blocked()) << i;
    rate_.note("a", now_);
  }
  EXPECT_TRUE(is_blocked());
  EXPECT_FALSE(is_blocked("b"));
  now_ += FailureRate::kPause;
  EXPECT_FALSE(is_blocked());
  rate_.note("a", now_);
  EXPECT_TRUE(is_blocked());
}

TEST_F(FailureRateTest, MoreFailuresDoNotMakeItLonger) {
  for (int i = 0; i < 10 * FailureRate::kBurst; ++i) rate_.note("a", now_);
  now_ += FailureRate::kPause;
  EXPECT_FALSE(is_blocked());
}

TEST_F(FailureRateTest, ManyAddressesDoNotPushOutOneThatStillFails) {
  for (std::size_t i = 0; i < 3 * FailureRate::kAddresses; ++i) {
    for (int twice = 0; twice < 2; ++twice) rate_.note("stranger" + std::to_string(i), now_);
    rate_.note("a", now_);
  }
  EXPECT_TRUE(is_blocked());
}

}  // namespace
}  // namespace ddprun
