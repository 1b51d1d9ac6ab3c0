// Tests the TLS of one connection with both ends in one thread: which peers are trusted, and
// what a peer without a certificate can do.
#include "rendezvous/auth/tls_channel.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/ssl.h>

#include <algorithm>
#include <optional>

#include "tests/support/certificates.h"
#include "tests/support/temporary_directory.h"

namespace ddprun {
namespace {

using testing::HasSubstr;
using testing_support::Authority;
using testing_support::IssuedFiles;
using testing_support::TemporaryDirectory;

class TlsChannelTest : public testing::Test {
 protected:
  struct Ends {
    TlsChannel agent;
    TlsChannel service;
    std::string agent_error;
    std::string service_error;
    bool are_open() const { return agent.is_open() && service.is_open(); }
  };

  static TlsContextPtr service_context(const IssuedFiles& own, const std::string& ca = "") {
    return TlsContext::for_service({.cert = own.cert, .key = own.key, .ca = ca})->context;
  }
  static TlsContextPtr agent_context(const std::string& ca, const IssuedFiles& own = {}) {
    return TlsContext::for_agent({.cert = own.cert, .key = own.key, .ca = ca})->context;
  }

  static void carry(TlsChannel& from, TlsChannel& to, std::size_t step, std::string& error) {
    const std::string wire = from.take_wire();
    for (std::size_t at = 0; at < wire.size() && error.empty(); at += step) {
      const Result<void> taken = to.receive(std::string_view(wire).substr(at, step));
      if (!taken) error = taken.error().message();
    }
  }
  // Transfers what each side sends to the other, in pieces of `step` bytes, until both are
  // silent.
  static void talk(Ends& ends, std::size_t step = 4096) {
    for (int i = 0; i < 6; ++i) {
      carry(ends.agent, ends.service, step, ends.service_error);
      carry(ends.service, ends.agent, step, ends.agent_error);
    }
  }
  Ends connect(const TlsContextPtr& agent, const TlsContextPtr& service,
               const std::string& host = "localhost", std::size_t step = 4096) {
    Ends ends{TlsChannel::agent(agent, host), TlsChannel::service(service), {}, {}};
    talk(ends, step);
    return ends;
  }

  const TemporaryDirectory directory_;
  const Authority ours_{directory_.path(), "ours"};
  const Authority theirs_{directory_.path(), "theirs"};
  const TlsContextPtr service_ = service_context(ours_.issue("service"));
  const TlsContextPtr agent_ = agent_context(ours_.ca_file());
};

TEST_F(TlsChannelTest, CarriesWhatIsSaidBothWays) {
  Ends ends = connect(agent_, service_);
  ASSERT_TRUE(ends.are_open()) << ends.agent_error << ends.service_error;
  ends.agent.send("knock");
  ends.service.send("come in");
  talk(ends);
  EXPECT_EQ(ends.service.take_plain(), "knock");
  EXPECT_EQ(ends.agent.take_plain(), "come in");
  EXPECT_EQ(ends.agent.take_plain(), "");
}

TEST_F(TlsChannelTest, HowTheBytesWereCutDoesNotMatter) {
  Ends ends = connect(agent_, service_, "127.0.0.1", 1);
  ASSERT_TRUE(ends.are_open()) << ends.agent_error << ends.service_error;
  const std::string large(1 << 20, 'x');
  ends.agent.send(large);
  talk(ends, 1);
  EXPECT_EQ(ends.service.take_plain(), large);
}

TEST_F(TlsChannelTest, AnotherAuthorityIsNotBelieved) {
  const Ends ends = connect(agent_context(theirs_.ca_file()), service_);
  EXPECT_FALSE(ends.agent.is_open());
  EXPECT_THAT(ends.agent_error, HasSubstr("the certificate of the peer is not accepted: "));
  EXPECT_THAT(ends.service_error, HasSubstr("the peer sent: ")) << "the last word arrives";
}

TEST_F(TlsChannelTest, TheSystemsAuthoritiesDoNotKnowOurs) {
  const Ends ends = connect(agent_context(TlsFiles::kSystem), service_);
  EXPECT_FALSE(ends.agent.is_open());
  EXPECT_THAT(ends.agent_error, HasSubstr("not accepted"));
}

TEST_F(TlsChannelTest, TheCertificateHasToBeForTheEndpoint) {
  const TlsContextPtr other =
      service_context(ours_.issue("other", {.names = "DNS:node0,IP:10.0.0.7,DNS:*.ddp.cluster"}));
  EXPECT_TRUE(connect(agent_, other, "node0").are_open());
  EXPECT_TRUE(connect(agent_, other, "node0.").are_open());
  EXPECT_TRUE(connect(agent_, other, "10.0.0.7").are_open());
  EXPECT_TRUE(connect(agent_, other, "node7.ddp.cluster").are_open());
  for (const char* host : {"node1", "10.0.0.8", "::1", "a.b.ddp.cluster", "other"}) {
    const Ends ends = connect(agent_, other, host);
    EXPECT_FALSE(ends.agent.is_open()) << host;
    EXPECT_THAT(ends.agent_error, HasSubstr("it is not valid for '" + std::string(host) + "'"));
  }
}

TEST_F(TlsChannelTest, AnExpiredCertificateIsNotAccepted) {
  const auto expired =
      service_context(ours_.issue("expired", {.valid_for = -std::chrono::hours(1)}));
  const Ends ends = connect(agent_, expired);
  EXPECT_FALSE(ends.agent.is_open());
  EXPECT_THAT(ends.agent_error, HasSubstr("certificate has expired"));
}

// With TLS 1.3 an agent learns this only after its own handshake has ended.
TEST_F(TlsChannelTest, WhoDemandsACertificateSaysSo) {
  const TlsContextPtr mutual = service_context(ours_.issue("service"), ours_.ca_file());
  EXPECT_TRUE(connect(agent_context(ours_.ca_file(), ours_.issue("node")), mutual).are_open());

  const Ends without = connect(agent_, mutual);
  EXPECT_FALSE(without.service.is_open());
  EXPECT_THAT(without.service_error, HasSubstr("the peer sent no certificate"));
  EXPECT_THAT(without.agent_error, HasSubstr("--rdzv-tls-cert and --rdzv-tls-key"));

  const Ends wrong = connect(agent_context(ours_.ca_file(), theirs_.issue("other")), mutual);
  EXPECT_FALSE(wrong.service.is_open());
  EXPECT_THAT(wrong.service_error, HasSubstr("not accepted"));
  EXPECT_THAT(wrong.agent_error, HasSubstr("does not come from its --rdzv-tls-ca"));

  const Ends late = connect(
      agent_context(ours_.ca_file(), ours_.issue("late", {.valid_for = -std::chrono::hours(1)})),
      mutual);
  EXPECT_FALSE(late.service.is_open());
  EXPECT_THAT(late.service_error, HasSubstr("expired"));
}

TEST_F(TlsChannelTest, WhatIsNoTlsBreaksIt) {
  TlsChannel service = TlsChannel::service(service_);
  const Result<void> taken = service.receive("DDPR and so on");
  ASSERT_FALSE(taken);
  EXPECT_EQ(taken.error().kind, ErrorKind::kProtocol);
  EXPECT_THAT(taken.error().message(), HasSubstr("TLS handshake: "));
}

TEST_F(TlsChannelTest, GarbageAfterTheClientHelloBreaksIt) {
  TlsChannel agent = TlsChannel::agent(agent_, "localhost");
  TlsChannel service = TlsChannel::service(service_);
  ASSERT_TRUE(service.receive(agent.take_wire()));
  EXPECT_FALSE(service.receive(std::string(100, '\x55')));
  EXPECT_FALSE(service.is_open());
}

TEST_F(TlsChannelTest, GarbageAfterTheHandshakeBreaksItToo) {
  Ends ends = connect(agent_, service_);
  ends.agent.send("knock");
  std::string wire = ends.agent.take_wire();
  wire.back() ^= 1;
  const Result<void> taken = ends.service.receive(wire);
  ASSERT_FALSE(taken);
  EXPECT_THAT(taken.error().message(), HasSubstr("TLS: "));
  EXPECT_EQ(ends.service.take_plain(), "");
}

// The peer sends a handshake record of the largest length and never ends it.
TEST_F(TlsChannelTest, AnUnauthenticatedPeerCannotSendMuch) {
  TlsChannel service = TlsChannel::service(service_);
  std::size_t sent = 0;
  bool is_broken = false;
  while (!is_broken && sent <= 4 * TlsChannel::kMaxHandshakeBytes) {
    const std::string piece = sent == 0 ? std::string("\x16\x03\x01\x40\x00\x01\x00\xff\xff", 9)
                                        : std::string(1000, '\0');
    is_broken = !service.receive(piece);
    sent += piece.size();
  }
  EXPECT_TRUE(is_broken);
  EXPECT_LE(sent, TlsChannel::kMaxHandshakeBytes + 1000);
}

TEST_F(TlsChannelTest, WhereThereIsNoTlsTheAlertSaysSo) {
  TlsChannel agent = TlsChannel::agent(agent_, "localhost");
  const Result<void> taken = agent.receive(kNoTlsHere);
  ASSERT_FALSE(taken);
  EXPECT_THAT(taken.error().message(), HasSubstr("has no --rdzv-tls-cert"));
}

TEST_F(TlsChannelTest, AGoodbyeIsTold) {
  Ends ends = connect(agent_, service_);
  ends.service.send("last");
  ends.service.close();
  talk(ends);
  EXPECT_EQ(ends.agent.take_plain(), "last");
  EXPECT_TRUE(ends.agent.is_ended());
  EXPECT_EQ(ends.agent_error, "");
}

// This needs the extended master secret, which OpenSSL always offers.
TEST_F(TlsChannelTest, Tls12IsGoodEnough) {
  SSL_CTX_set_max_proto_version(agent_->get(), TLS1_2_VERSION);
  const Ends ends = connect(agent_, service_);
  ASSERT_TRUE(ends.are_open()) << ends.agent_error << ends.service_error;
  EXPECT_EQ(ends.agent.binding(), ends.service.binding());
  SSL_CTX_set_max_proto_version(agent_->get(), TLS1_1_VERSION);
  SSL_CTX_set_min_proto_version(agent_->get(), TLS1_1_VERSION);
  EXPECT_FALSE(connect(agent_, service_).are_open());
}

// Both sides must accept a cipher without forward secrecy. One side does not.
TEST_F(TlsChannelTest, Tls12WithoutForwardSecrecyIsRefusedByEitherSide) {
  for (const bool of_agent : {true, false}) {
    const TlsContextPtr agent = agent_context(ours_.ca_file());
    const TlsContextPtr service = service_context(ours_.issue("service", {.rsa = true}));
    SSL_CTX_set_max_proto_version(agent->get(), TLS1_2_VERSION);
    ssl_ctx_st* const willing = (of_agent ? agent : service)->get();
    ASSERT_EQ(SSL_CTX_set_cipher_list(willing, "AES128-GCM-SHA256:AES256-GCM-SHA384"), 1);
    EXPECT_FALSE(connect(agent, service).are_open()) << of_agent;
    // If both accept such a cipher, the handshake succeeds. So the missing forward secrecy was
    // the only reason.
    ssl_ctx_st* const other = (of_agent ? service : agent)->get();
    ASSERT_EQ(SSL_CTX_set_cipher_list(other, "AES128-GCM-SHA256:AES256-GCM-SHA384"), 1);
    EXPECT_TRUE(connect(agent, service).are_open()) << of_agent;
  }
}

TEST_F(TlsChannelTest, BothEndsCallTheConnectionTheSameAndNoOtherOne) {
  const Ends one = connect(agent_, service_);
  const Ends other = connect(agent_, service_);
  EXPECT_EQ(one.agent.binding().size(), 32u);
  EXPECT_EQ(one.agent.binding(), one.service.binding());
  EXPECT_NE(one.agent.binding(), other.agent.binding());
}

}  // namespace
}  // namespace ddprun
