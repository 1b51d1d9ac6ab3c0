// Tests ddprun and ddp-rendezvous with TLS, as whole programs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <csignal>
#include <fstream>

#include "base/host_port.h"
#include "tests/integration/rendezvous/service_frame.h"
#include "tests/support/certificates.h"
#include "tests/support/held_port.h"
#include "tests/support/http_get.h"
#include "tests/support/raw_tls_client.h"

namespace ddprun::testing_support {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class Tls : public ServiceTest {
 protected:
  Arguments own(const IssuedFiles& files) const {
    return {"--rdzv-tls-cert=" + files.cert, "--rdzv-tls-key=" + files.key};
  }
  Arguments mutual(const IssuedFiles& files) const { return joined(own(files), {ca()}); }
  std::string ca() const { return "--rdzv-tls-ca=" + ours_.ca_file(); }

  const Authority ours_{directory_.path(), "ours"};
  const Authority theirs_{directory_.path(), "theirs"};
  const IssuedFiles service_files_ = ours_.issue("service");
  const IssuedFiles node_files_ = ours_.issue("node");
};

TEST_F(Tls, AJobOfTwoNodesDoesNotNoticeThatItsServiceIsKilled) {
  service_flags_ = joined(service_flags_, mutual(service_files_));
  ASSERT_NO_FATAL_FAILURE(give_directory_a_past());
  ASSERT_NO_FATAL_FAILURE(start_service());
  const std::string script = until_go_after("echo started");
  auto one = start(node(address_, mutual(node_files_), script));
  auto two = start(node(address_, mutual(ours_.issue("node2")), script));
  ASSERT_TRUE(one->wait_for_out("started")) << one->err();
  ASSERT_TRUE(two->wait_for_out("started")) << two->err();

  ASSERT_NO_FATAL_FAILURE(kill_service());
  ASSERT_NO_FATAL_FAILURE(start_service());
  ASSERT_TRUE(service_->wait_for_err("took over generation 0")) << service_->err();

  let_go();
  EXPECT_EQ(one->wait(), 0) << one->err();
  EXPECT_EQ(two->wait(), 0) << two->err();
  for (const auto* job : {one.get(), two.get()}) {
    EXPECT_EQ(lines_of(job->out()).size(), 1u) << "its worker was started once: " << job->out();
    EXPECT_THAT(job->err(), Not(HasSubstr("rendezvous service"))) << "its agent had nothing to say";
  }
  end(*service_);
}

TEST_F(Tls, AnAgentThatServesTakesTheSameOptions) {
  const HeldPort held;
  auto one = start(node(held.endpoint(), mutual(service_files_), "true"));
  ASSERT_TRUE(one->wait_for_err("waiting")) << one->err();
  auto plain = start(node(held.endpoint(), {}, "true"));
  EXPECT_EQ(plain->wait(), 66);
  EXPECT_THAT(plain->err(), HasSubstr("give this node --rdzv-tls-ca"));
  auto unauthenticated = start(node(held.endpoint(), {ca()}, "true"));
  EXPECT_EQ(unauthenticated->wait(), 66);
  EXPECT_THAT(unauthenticated->err(), HasSubstr("--rdzv-tls-cert and --rdzv-tls-key"));
  auto two = start(node(held.endpoint(), mutual(node_files_), "true"));
  EXPECT_EQ(two->wait(), 0) << two->err();
  EXPECT_EQ(one->wait(), 0) << one->err();
}

TEST_F(Tls, WhoServesNeedsACertificate) {
  const HeldPort held;
  auto job = start(node(held.endpoint(), {ca()}, "true"));
  EXPECT_EQ(job->wait(), 2);
  EXPECT_THAT(job->err(), HasSubstr("this host starts the service: --rdzv-tls-cert"));
}

TEST_F(Tls, StaticModeTakesThemToo) {
  const HeldPort held;
  const auto rank = [&](int number, const Arguments& tls) {
    const Arguments place{"--nnodes=2", "--master-addr=127.0.0.1",
                          "--master-port=" + std::to_string(held.port()),
                          "--node-rank=" + std::to_string(number)};
    return start_shell(joined(place, tls), "true");
  };
  auto zero = rank(0, mutual(service_files_));
  auto one = rank(1, mutual(node_files_));
  EXPECT_EQ(one->wait(), 0) << one->err();
  EXPECT_EQ(zero->wait(), 0) << zero->err();
}

TEST_F(Tls, CertificatesOnBothSidesAreAsGoodAsAKey) {
  const Arguments both = joined(mutual(service_files_), {"--require-auth"});
  auto closed = start_rendezvous(joined({"--listen=*:0"}, both));
  EXPECT_NE(listening_address(*closed), "") << closed->err();
  end(*closed);
  EXPECT_THAT(closed->err(), Not(HasSubstr("anyone")));
  auto open = start_rendezvous(joined({"--listen=*:0"}, own(service_files_)));
  EXPECT_NE(listening_address(*open), "") << open->err();
  EXPECT_TRUE(open->wait_for_err("anyone")) << open->err();
  end(*open);
  auto refused = start_rendezvous(joined({"--listen=*:0", "--require-auth"}, own(service_files_)));
  EXPECT_EQ(refused->wait(), 2);

  const HeldPort held;
  auto node_without = start(node(held.endpoint(), {ca(), "--require-auth"}, "true"));
  EXPECT_EQ(node_without->wait(), 2);
  auto one = start(node(held.endpoint(), both, "true"));
  auto two = start(node(held.endpoint(), both, "true"));
  EXPECT_EQ(one->wait(), 0) << one->err();
  EXPECT_EQ(two->wait(), 0) << two->err();
}

TEST_F(Tls, AServiceOfAnotherAuthorityIsNotJoined) {
  auto service = start_rendezvous(joined({"--listen=127.0.0.1:0"}, own(theirs_.issue("service2"))));
  auto job = start(node(listening_address(*service), {ca()}, "true"));
  EXPECT_EQ(job->wait(), 66);
  EXPECT_THAT(job->err(), AllOf(HasSubstr("no TLS connection with 127.0.0.1:"),
                                HasSubstr("the certificate of the peer is not accepted")));
  end(*service);
}

TEST_F(Tls, CertificatesAreReadAgainAtSighup) {
  auto service = start_rendezvous(joined({"--listen=127.0.0.1:0"}, own(service_files_)));
  const std::string endpoint = listening_address(*service);
  ASSERT_NE(endpoint, "") << service->err();
  const auto is_believed = [&] {
    const auto context =
        TlsContext::for_agent({.cert = {}, .key = {}, .ca = ours_.ca_file()})->context;
    return RawTlsClient(parse_host_port(endpoint)->port, context).is_open();
  };
  EXPECT_TRUE(is_believed());
  const IssuedFiles other = theirs_.issue("service");  // replaces ours
  ASSERT_EQ(other.cert, service_files_.cert);
  EXPECT_TRUE(is_believed()) << "nothing is read before it is told";
  service->signal(SIGHUP);
  ASSERT_TRUE(service->wait_for_err("has read the certificates again")) << service->err();
  EXPECT_FALSE(is_believed());
  std::ofstream(other.key) << "mistake\n";
  service->signal(SIGHUP);
  ASSERT_TRUE(service->wait_for_err("the certificates stay as they are")) << service->err();
  ours_.issue("service");
  service->signal(SIGHUP);
  EXPECT_TRUE(eventually(is_believed)) << service->err();
  end(*service);
}

TEST_F(Tls, KeysOfTheEnvironmentSurviveAReload) {
  auto service = start_rendezvous(joined({"--listen=127.0.0.1:0"}, own(service_files_)),
                                  {{"DDPRUN_RDZV_KEY", "0123456789abcdef"}});
  const std::string endpoint = listening_address(*service);
  service->signal(SIGHUP);
  ASSERT_TRUE(service->wait_for_err("has read the certificates again")) << service->err();
  auto job = start(node(endpoint, {ca()}, "true"));
  EXPECT_EQ(job->wait(), 66);
  EXPECT_THAT(job->err(), HasSubstr("this service requires a key"));
  end(*service);
}

TEST_F(Tls, WrongFilesAreNamedInOneLine) {
  EXPECT_THAT(failure_of_node({"--rdzv-tls-ca=" + (directory_ / "nothing")}),
              testing::Pair(73, HasSubstr("/nothing: No such file")));
  EXPECT_THAT(failure_of_node({"--rdzv-tls-cert=" + node_files_.cert}),
              testing::Pair(2, HasSubstr("needs --rdzv-tls-key")));
  EXPECT_THAT(failure_of_node(
                  {"--rdzv-tls-cert=" + node_files_.cert, "--rdzv-tls-key=" + service_files_.key}),
              testing::Pair(2, HasSubstr("not the key of the certificate in")));
  auto service = start_rendezvous({"--listen=127.0.0.1:0", ca()});
  EXPECT_EQ(service->wait(), 2);
  EXPECT_THAT(service->err(), HasSubstr("a TLS service needs a certificate"));
  ASSERT_EQ(chmod(node_files_.key.c_str(), 0644), 0);
  auto remarked = start_rendezvous(joined({"--listen=127.0.0.1:0"}, own(node_files_)));
  EXPECT_NE(listening_address(*remarked), "") << remarked->err();
  EXPECT_TRUE(remarked->wait_for_err("other users can read the key in " + node_files_.key))
      << remarked->err();
  end(*remarked);
}

}  // namespace
}  // namespace ddprun::testing_support
