// An agent's link to a real service, with a name service that the test plays.
#include "rendezvous/service_link.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/write.hpp>
#include <functional>
#include <thread>

#include "rendezvous/control_codec.h"
#include "rendezvous/core/wire_format.h"
#include "tests/support/eventually.h"
#include "tests/support/hello_of.h"
#include "tests/support/running_service.h"

namespace ddprun {
namespace {

using testing::HasSubstr;

using std::chrono::milliseconds;
using testing_support::hello_of;
using testing_support::RunningService;

class ServiceLinkTest : public testing::Test {
 protected:
  void make_link(RemoteLinkOptions options) {
    if (options.port == 0) options.port = port_;
    options.link.connect_timeout = milliseconds(50);
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
  boost::asio::io_context io_{1};
  std::unique_ptr<ServiceLink> link_;
  int directives_ = 0;
  std::string trouble_;
};

TEST_F(ServiceLinkTest, FindsAServiceByItsNumberAndByItsName) {
  for (const char* host : {"127.0.0.1", "localhost"}) {
    directives_ = 0;
    RemoteLinkOptions options;
    options.host = host;
    make_link(std::move(options));
    EXPECT_TRUE(run_until([&] { return directives_ > 0; })) << host << ": " << trouble_;
  }
}

TEST_F(ServiceLinkTest, ANameServiceMayTakeLongerThanATryToConnectMay) {
  ResolveHandler answer;
  int questions = 0;
  RemoteLinkOptions options;
  options.host = "node0";
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
  options.host = "node0";
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
  options.host = "127.0.0.1";
  options.port = acceptor.local_endpoint().port();
  make_link(std::move(options));
  tcp::socket agent(io_);
  ASSERT_TRUE(run_until([&] {
    boost::system::error_code error;
    if (!agent.is_open()) acceptor.accept(agent, error);
    return agent.is_open();
  }));
  const std::string unknown = R"({"type":"fireworks"})";
  std::string bytes = *encode(ServiceMessage(Welcome{.instance = "i",
                                                     .heartbeat_interval = milliseconds(100),
                                                     .agent_patience = std::chrono::seconds(9)}));
  bytes += std::string(kControlMagic);
  put_u32(bytes, static_cast<std::uint32_t>(unknown.size()));
  bytes += unknown + *encode(ServiceMessage(Wait{"for others"}));
  boost::asio::write(agent, boost::asio::buffer(bytes));
  EXPECT_TRUE(run_until([&] { return directives_ > 0; })) << trouble_;
}

TEST_F(ServiceLinkTest, ALookUpThatEndsAfterItsLinkHarmsNobody) {
  ResolveHandler answer;
  RemoteLinkOptions options;
  options.host = "node0";
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
    options.host = "127.0.0.1";
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
  const auto has_refused = [&] {
    for (const std::string& line : service_->log_lines()) {
      if (line.find("this service has no key") != std::string::npos) return true;
    }
    return false;
  };
  ASSERT_TRUE(run_until(has_refused));
  EXPECT_EQ(trouble_, "") << "it goes on trying";
  give_service(kKey);
  directives_ = 0;
  EXPECT_TRUE(run_until([&] { return directives_ > 0; })) << trouble_;
}

}  // namespace
}  // namespace ddprun
