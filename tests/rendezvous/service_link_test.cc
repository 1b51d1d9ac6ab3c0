// An agent's link to a real service, with a name service that the test plays.
#include "rendezvous/service_link.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/write.hpp>
#include <functional>
#include <thread>

#include "tests/support/certificates.h"
#include "tests/support/control_frame.h"
#include "tests/support/eventually.h"
#include "tests/support/hello_of.h"
#include "tests/support/running_service.h"
#include "tests/support/temporary_directory.h"

namespace ddprun {
namespace {

using testing::HasSubstr;

using std::chrono::milliseconds;
using testing_support::hello_of;
using testing_support::RunningService;

class ServiceLinkTest : public testing::Test {
 protected:
  void make_link(RemoteLinkOptions options) {
    if (options.address.port == 0) options.address.port = port_;
    options.link.connect_timeout = connect_timeout_;
    link_ = make_remote_link(io_, std::move(options),
                             {.hello =
                                  [](const std::string& address) {
                                    Hello hello = hello_of(kDefaultJobId, "a");
                                    hello.node.address = address;
                                    return hello;
                                  },
                              .directive = [this](const Directive&) { ++directives_; },
                              .lost = [this](const LinkLost& lost) { trouble_ = lost.reason; },
                              .refused = [this](const std::string& reason) { trouble_ = reason; }});
    link_->start();
  }

  template <class Condition>
  bool run_until(Condition&& condition) {
    return testing_support::eventually_on(io_, condition);
  }

  std::unique_ptr<RunningService> service_ = std::make_unique<RunningService>();
  const std::uint16_t port_ = service_->port();
  Duration connect_timeout_ = milliseconds(50);
  boost::asio::io_context io_{1};
  std::unique_ptr<ServiceLink> link_;
  int directives_ = 0;
  std::string trouble_;
};

TEST_F(ServiceLinkTest, FindsAServiceByItsNumberAndByItsName) {
  for (const char* host : {"127.0.0.1", "localhost"}) {
    directives_ = 0;
    RemoteLinkOptions options;
    options.address.host = host;
    make_link(std::move(options));
    EXPECT_TRUE(run_until([&] { return directives_ > 0; })) << host << ": " << trouble_;
  }
}

TEST_F(ServiceLinkTest, ANameServiceMayTakeLongerThanATryToConnectMay) {
  ResolveHandler answer;
  int questions = 0;
  RemoteLinkOptions options;
  options.address.host = "node0";
  options.look_up = [&](const HostPort&, ResolveHandler then) {
    ++questions;
    answer = std::move(then);
  };
  make_link(std::move(options));
  io_.run_for(milliseconds(200));  // four times connect_timeout
  EXPECT_EQ(questions, 1);
  std::thread([&] { answer(std::vector{*numeric_address({"127.0.0.1", port_})}); }).join();
  EXPECT_TRUE(run_until([&] { return directives_ > 0; })) << trouble_;
}

TEST_F(ServiceLinkTest, AnAddressThatWorkedIsUsedWhileTheNameServiceIsSilent) {
  int questions = 0;
  RemoteLinkOptions options;
  options.address.host = "node0";
  options.look_up = [&](const HostPort&, const ResolveHandler& then) {
    if (++questions == 1) then(std::vector{*numeric_address({"127.0.0.1", port_})});
  };
  make_link(std::move(options));
  ASSERT_TRUE(run_until([&] { return directives_ > 0; }));

  service_.reset();
  ASSERT_TRUE(run_until([&] { return questions == 2; })) << "it is asked when nobody is reached";
  service_ = std::make_unique<RunningService>(ServiceOptions{.service_id = "t"}, port_);
  directives_ = 0;
  EXPECT_TRUE(run_until([&] { return directives_ > 0; })) << trouble_;
}

// A service of a later version may say what this one does not know.
TEST_F(ServiceLinkTest, AMessageOfATypeItDoesNotKnowIsPassedOver) {
  using boost::asio::ip::tcp;
  tcp::acceptor acceptor(io_, {boost::asio::ip::address_v4::loopback(), 0});
  acceptor.non_blocking(true);
  RemoteLinkOptions options;
  options.address.host = "127.0.0.1";
  options.address.port = acceptor.local_endpoint().port();
  make_link(std::move(options));
  tcp::socket agent(io_);
  ASSERT_TRUE(run_until([&] {
    boost::system::error_code error;
    if (!agent.is_open()) acceptor.accept(agent, error);
    return agent.is_open();
  }));
  std::string bytes = *encode(ServiceMessage(Welcome{.instance = "i",
                                                     .heartbeat_interval = milliseconds(100),
                                                     .agent_patience = std::chrono::seconds(9)}));
  bytes += testing_support::frame_of(R"({"type":"fireworks"})");
  bytes += *encode(ServiceMessage(Wait{"for others"}));
  boost::asio::write(agent, boost::asio::buffer(bytes));
  EXPECT_TRUE(run_until([&] { return directives_ > 0; })) << trouble_;
}

TEST_F(ServiceLinkTest, ALookUpThatEndsAfterItsLinkHarmsNobody) {
  ResolveHandler answer;
  RemoteLinkOptions options;
  options.address.host = "node0";
  options.look_up = [&](const HostPort&, ResolveHandler then) { answer = std::move(then); };
  make_link(std::move(options));
  io_.run_for(milliseconds(10));
  ASSERT_TRUE(answer);
  link_.reset();
  answer(std::vector{*numeric_address({"127.0.0.1", port_})});
  io_.run_for(milliseconds(10));
  EXPECT_EQ(directives_, 0);
}

// --- keys --------------------------------------------------------------------------------------------

class ServiceLinkWithAKey : public ServiceLinkTest {
 protected:
  void give_service(const std::string& key) {
    service_->on_thread([&] { service_->server().set_keys(Keyring::parse(key).value()); });
  }
  void make_link_with(const std::string& key) {
    RemoteLinkOptions options;
    options.address.host = "127.0.0.1";
    options.key = key;
    make_link(std::move(options));
  }
  static constexpr const char* kKey = "0123456789abcdef";
};

TEST_F(ServiceLinkWithAKey, IsWelcomeWhereItIsTheSame) {
  give_service(kKey);
  make_link_with(kKey);
  EXPECT_TRUE(run_until([&] { return directives_ > 0; })) << trouble_;
}

TEST_F(ServiceLinkWithAKey, SaysWhyItIsRefused) {
  give_service(kKey);
  make_link_with("fedcba9876543210");
  ASSERT_TRUE(run_until([&] { return !trouble_.empty(); }));
  EXPECT_THAT(trouble_, HasSubstr("the key of this node is not the key"));
  trouble_.clear();
  make_link_with("");
  ASSERT_TRUE(run_until([&] { return !trouble_.empty(); }));
  EXPECT_THAT(trouble_, HasSubstr("admits nobody without a key"));
  EXPECT_EQ(directives_, 0);
}

TEST_F(ServiceLinkWithAKey, DoesNotFollowAServiceWithoutIt) {
  make_link_with(kKey);
  ASSERT_TRUE(run_until([&] { return !trouble_.empty(); }));
  EXPECT_THAT(trouble_, HasSubstr("this service has no key"));
  EXPECT_EQ(directives_, 0);
}

TEST_F(ServiceLinkWithAKey, AStrangerInTheServicesPlaceEndsNothing) {
  give_service(kKey);
  make_link_with(kKey);
  ASSERT_TRUE(run_until([&] { return directives_ > 0; })) << trouble_;
  service_.reset();
  service_ = std::make_unique<RunningService>(ServiceOptions{.service_id = "t"}, port_);
  ASSERT_TRUE(run_until([&] { return service_->has_logged("this service has no key"); }));
  EXPECT_EQ(trouble_, "") << "it goes on trying";
  give_service(kKey);
  directives_ = 0;
  EXPECT_TRUE(run_until([&] { return directives_ > 0; })) << trouble_;
}

// --- TLS ---------------------------------------------------------------------------------------------

using testing_support::Authority;
using testing_support::IssuedFiles;

class ServiceLinkWithTls : public ServiceLinkTest {
 protected:
  ServiceLinkWithTls() { connect_timeout_ = std::chrono::seconds(3); }

  void give_service(const TlsFiles& files) {
    const TlsContextPtr tls = TlsContext::for_service(files)->context;
    service_->on_thread([&] { service_->server().set_tls(tls); });
  }
  void make_link_with(const TlsFiles& files, const std::string& key = "",
                      const std::string& host = "127.0.0.1") {
    RemoteLinkOptions options;
    options.address.host = host;
    options.key = key;
    if (files.is_given()) options.tls = TlsContext::for_agent(files)->context;
    options.tls_files = files;
    make_link(std::move(options));
  }
  // Why an agent that was never welcomed gives up at once.
  std::string gives_up(const TlsFiles& files, const std::string& host = "127.0.0.1") {
    trouble_.clear();
    make_link_with(files, "", host);
    EXPECT_TRUE(run_until([&] { return !trouble_.empty(); }));
    EXPECT_EQ(directives_, 0);
    return trouble_;
  }
  bool joins() {
    directives_ = 0;
    return run_until([&] { return directives_ > 0; });
  }
  void restart_service() {
    service_.reset();
    service_ = std::make_unique<RunningService>(ServiceOptions{.service_id = "t"}, port_);
  }
  bool service_has_logged(const std::string& text) {
    return run_until([&] { return service_->has_logged(text); });
  }

  const testing_support::TemporaryDirectory directory_;
  const Authority ours_{directory_.path(), "ours"};
  const Authority theirs_{directory_.path(), "theirs"};
  const IssuedFiles service_files_ = ours_.issue("service");
  const TlsFiles plain_tls_{.cert = service_files_.cert, .key = service_files_.key, .ca = {}};
  const TlsFiles mutual_{
      .cert = service_files_.cert, .key = service_files_.key, .ca = ours_.ca_file()};
  const TlsFiles knows_us_{.cert = {}, .key = {}, .ca = ours_.ca_file()};
};

TEST_F(ServiceLinkWithTls, JoinsThroughItByAddressAndByName) {
  give_service(plain_tls_);
  for (const char* host : {"127.0.0.1", "localhost"}) {
    make_link_with(knows_us_, "", host);
    EXPECT_TRUE(joins()) << trouble_;
  }
}

TEST_F(ServiceLinkWithTls, TheKeyIsProvedInsideIt) {
  give_service(plain_tls_);
  service_->on_thread(
      [&] { service_->server().set_keys(Keyring::parse("0123456789abcdef").value()); });
  make_link_with(knows_us_, "0123456789abcdef");
  EXPECT_TRUE(joins()) << trouble_;
  make_link_with(knows_us_, "fedcba9876543210");
  ASSERT_TRUE(run_until([&] { return !trouble_.empty(); }));
  EXPECT_THAT(trouble_, HasSubstr("the key of this node is not the key"));
}

TEST_F(ServiceLinkWithTls, AServiceThatIsNotToBeTrustedEndsTheJoinWithTheReason) {
  give_service(plain_tls_);
  EXPECT_THAT(gives_up({.cert = {}, .key = {}, .ca = theirs_.ca_file()}),
              HasSubstr("the certificate of the peer is not accepted: "));
  EXPECT_THAT(gives_up({.cert = {}, .key = {}, .ca = TlsFiles::kSystem}),
              HasSubstr("not accepted"));
  const IssuedFiles other = ours_.issue("other", {.names = "DNS:node7"});
  give_service({.cert = other.cert, .key = other.key, .ca = {}});
  EXPECT_THAT(gives_up(knows_us_, "localhost"), HasSubstr("it is not for 'localhost'"));
  const IssuedFiles late = ours_.issue("late", {.valid_for = -std::chrono::hours(1)});
  give_service({.cert = late.cert, .key = late.key, .ca = {}});
  EXPECT_THAT(gives_up(knows_us_), HasSubstr("certificate has expired"));
  EXPECT_THAT(trouble_, HasSubstr("no TLS connection with"));
}

TEST_F(ServiceLinkWithTls, SaysWhatTheServiceWants) {
  give_service(mutual_);
  EXPECT_THAT(gives_up(knows_us_), HasSubstr("--rdzv-tls-cert and --rdzv-tls-key"));
  const IssuedFiles stranger = theirs_.issue("stranger");
  EXPECT_THAT(gives_up({.cert = stranger.cert, .key = stranger.key, .ca = ours_.ca_file()}),
              HasSubstr("does not come from its --rdzv-tls-ca"));
  EXPECT_THAT(gives_up({}), HasSubstr("nobody without TLS: give this node --rdzv-tls-ca"));
  make_link_with(mutual_);
  EXPECT_TRUE(joins()) << trouble_;
}

TEST_F(ServiceLinkWithTls, DoesNotFollowAServiceWithoutIt) {
  EXPECT_THAT(gives_up(knows_us_), HasSubstr("has no --rdzv-tls-cert"));
}

TEST_F(ServiceLinkWithTls, AStrangerInTheServicesPlaceEndsNothing) {
  give_service(plain_tls_);
  make_link_with(knows_us_);
  ASSERT_TRUE(joins()) << trouble_;
  restart_service();  // without TLS, and then with a certificate of somebody else's
  ASSERT_TRUE(service_has_logged("it speaks TLS"));
  const IssuedFiles stranger = theirs_.issue("stranger");
  give_service({.cert = stranger.cert, .key = stranger.key, .ca = {}});
  ASSERT_TRUE(service_has_logged("the peer says: "));
  EXPECT_EQ(trouble_, "") << "it goes on trying";
  give_service(plain_tls_);
  EXPECT_TRUE(joins()) << trouble_;
}

TEST_F(ServiceLinkWithTls, ReadsItsFilesAgainForTheNextConnection) {
  give_service(mutual_);
  const IssuedFiles node = ours_.issue("node");
  make_link_with({.cert = node.cert, .key = node.key, .ca = ours_.ca_file()});
  ASSERT_TRUE(joins()) << trouble_;
  // The authority is a new one, and so is everything that it signs.
  const Authority renewed(directory_.path(), "ours");
  renewed.issue("node");
  renewed.issue("service");
  restart_service();
  give_service(mutual_);
  EXPECT_TRUE(joins()) << trouble_;
}

}  // namespace
}  // namespace ddprun
