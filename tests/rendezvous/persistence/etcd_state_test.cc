#include "rendezvous/persistence/etcd_state.h"

#include <gtest/gtest.h>

#include <array>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/write.hpp>
#include <memory>
#include <optional>

#include "rendezvous/persistence/state_codec.h"
#include "tests/support/etcd_cluster.h"
#include "tests/support/eventually.h"

namespace ddprun {
namespace {

using boost::asio::ip::tcp;
using testing_support::EtcdCluster;
using testing_support::eventually_on;

// Service: an EtcdState and what it has reported.
struct Service {
  EtcdRevision term = 0;
  JournalImage image;
  std::string leader;
  std::uint64_t durable = 0;
  int suspended = 0;
  int stepped_down = 0;
  std::vector<std::string> failures;
  std::string stuck;
  std::uint64_t changes = 0;
  std::optional<EtcdState> state;
};

class EtcdStateTest : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = EtcdCluster::why_not(); !why.empty()) GTEST_SKIP() << why;
    etcd_.emplace(3);
    client_.endpoints = etcd_->endpoints();
  }

  void start(std::size_t index) {
    Service& service = services_[index];
    service = {};
    EtcdStateEvents events;
    events.leads = [&service](EtcdRevision term, const JournalImage& image) {
      service.term = term;
      service.image = image;
      service.changes = service.durable = 0;
    };
    events.suspended = [&service] { ++service.suspended; };
    events.resumed = [] {};
    events.stepped_down = [&service](const std::string&) {
      service.term = 0;
      ++service.stepped_down;
    };
    events.follows = [&service](const std::string& leader, EtcdRevision) {
      service.leader = leader;
    };
    events.store.durable = [&service](std::uint64_t number) { service.durable = number; };
    events.store.failed = [&service](const Error& why) { service.stuck = why.message(); };
    events.store.well = [&service] { service.stuck.clear(); };
    events.trouble = [&service](const std::optional<Error>& why) {
      if (why) service.failures.push_back(why->message());
    };
    service.state.emplace(io_, EtcdStateOptions{client_, "/test", name_of(index)}, Rng(index),
                          std::move(events));
  }

  static std::string name_of(std::size_t index) { return "service" + std::to_string(index); }

  template <class Condition>
  bool until(Condition&& condition, Duration allowed = testing_support::kPatience) {
    return eventually_on(io_, condition, allowed);
  }

  Service* leader() {
    Service* found = nullptr;
    for (Service& service : services_) {
      if (!service.state || service.term == 0) continue;
      EXPECT_FALSE(found) << "two services lead";
      found = &service;
    }
    return found;
  }

  void keep(Service& service, const std::string& id) {
    const std::uint64_t number = ++service.changes;
    service.state->keep(number, ServiceBegun{id, number});
  }
  bool is_durable(Service& service) {
    return until([&] { return service.durable == service.changes; });
  }
  bool has_leader() {
    return until([&] { return leader() != nullptr; });
  }

  boost::asio::io_context io_;
  std::optional<EtcdCluster> etcd_;
  EtcdClientOptions client_;
  std::array<Service, 3> services_;
};

TEST_F(EtcdStateTest, OneLeadsAndTheNextOneReadsWhatItHasWritten) {
  for (std::size_t i = 0; i < 3; ++i) start(i);
  ASSERT_TRUE(has_leader());
  Service& first = *leader();
  EXPECT_TRUE(first.image.empty());
  for (int i = 0; i < 50; ++i) keep(first, "life" + std::to_string(i));
  ASSERT_TRUE(is_durable(first));
  const EtcdRevision term = first.term;
  ASSERT_TRUE(until([&] {
    return std::ranges::count_if(services_, [](const Service& s) { return !s.leader.empty(); }) ==
           2;
  }));

  bool resigned = false;
  first.state->resign([&] { resigned = true; });
  first.term = 0;
  ASSERT_TRUE(has_leader());
  EXPECT_TRUE(until([&] { return resigned; }));
  Service& second = *leader();
  EXPECT_GT(second.term, term);
  const auto state = decode_state(second.image);
  ASSERT_TRUE(state);
  EXPECT_EQ(state->service_id, "life49");
  keep(second, "other life");
  EXPECT_TRUE(is_durable(second));
}

// A process that is killed leaves its lease behind.
TEST_F(EtcdStateTest, AKilledLeaderIsSucceededAtOnceIfItsEndWasSeen) {
  for (std::size_t i = 0; i < 3; ++i) start(i);
  ASSERT_TRUE(has_leader());
  Service& first = *leader();
  ASSERT_TRUE(until([&] {
    return std::ranges::count_if(services_, [](const Service& s) { return !s.leader.empty(); }) ==
           2;
  }));
  first.state.reset();
  first.term = 0;
  const TimePoint killed = BootClock::now();
  for (Service& service : services_) {
    if (service.state) service.state->leader_process_gone();
  }
  ASSERT_TRUE(has_leader());
  // Without it, the lease would hold for this time.
  EXPECT_LT(BootClock::now() - killed, Leadership::kLease);
}

TEST_F(EtcdStateTest, AKilledLeaderIsSucceededWhenItsLeaseHasRunOut) {
  start(0);
  ASSERT_TRUE(has_leader());
  start(1);
  ASSERT_TRUE(until([&] { return !services_[1].leader.empty(); }));
  services_[0].state.reset();
  services_[0].term = 0;
  EXPECT_TRUE(until([&] { return services_[1].term != 0; }));
}

TEST_F(EtcdStateTest, AnElectionOfEtcdEndsNoTerm) {
  start(0);
  ASSERT_TRUE(has_leader());
  Service& service = services_[0];
  const EtcdRevision term = service.term;
  etcd_->kill(etcd_->leader());
  for (int i = 0; i < 20; ++i) {
    keep(service, "life" + std::to_string(i));
    ASSERT_TRUE(is_durable(service));
  }
  EXPECT_EQ(service.term, term);
  EXPECT_EQ(service.stepped_down, 0);
}

// The name service answers once for each member. Then it is away, and etcd's leader is lost.
TEST_F(EtcdStateTest, NamesThatStopResolvingEndNoTerm) {
  int asked = 0;
  NameService names(io_, [&asked](const HostPort& address, const ResolveHandler& then) {
    if (++asked > 3) return then(Error{.kind = ErrorKind::kNotFound, .cause = "no name service"});
    then(std::vector{*numeric_address({"127.0.0.1", address.port})});
  });
  for (HostPort& one : client_.endpoints) one.host = "etcd.test";
  client_.names = &names;
  start(0);
  ASSERT_TRUE(has_leader());
  Service& service = services_[0];
  ASSERT_TRUE(until([&] { return asked > 3; }));
  etcd_->kill(etcd_->leader());
  for (int i = 0; i < 20; ++i) {
    keep(service, "life" + std::to_string(i));
    ASSERT_TRUE(is_durable(service));
  }
  EXPECT_EQ(service.stepped_down, 0);
  service.state.reset();
}

TEST_F(EtcdStateTest, WithoutAQuorumTheLeaderIsSuspendedAndGoesOnLater) {
  start(0);
  ASSERT_TRUE(has_leader());
  Service& service = services_[0];
  for (const char* member : {"0", "1"}) etcd_->freeze(member);
  ASSERT_TRUE(until([&] { return service.suspended == 1; }));
  EXPECT_FALSE(service.state->serves());
  // A member that still takes itself for etcd's leader answers for a while, between failures.
  ASSERT_FALSE(service.failures.empty());
  EXPECT_NE(service.failures[0].find("ask etcd at 127.0.0.1:"), std::string::npos);
  for (const char* member : {"0", "1"}) etcd_->thaw(member);
  EXPECT_TRUE(until([&] { return service.state->serves(); }));
}

TEST_F(EtcdStateTest, ATooLargeChangeIsReportedUntilASmallerOneHasReplacedIt) {
  start(0);
  ASSERT_TRUE(has_leader());
  Service& service = services_[0];
  keep(service, std::string(2 << 20, 'x'));
  ASSERT_TRUE(until([&] {
    return service.stuck.find("more than etcd takes") != std::string::npos;
  })) << service.stuck;
  keep(service, "small");
  EXPECT_TRUE(is_durable(service));
  EXPECT_EQ(service.stuck, "");
}

// As with a full quota: leases go on, writes do not.
TEST_F(EtcdStateTest, WritesThatEtcdRefusesAreReportedUntilItTakesThem) {
  start(0);
  ASSERT_TRUE(has_leader());
  Service& service = services_[0];
  etcd_->set_alarm("ACTIVATE");
  keep(service, "full");
  ASSERT_TRUE(until([&] { return service.stuck.find("space exceeded") != std::string::npos; }))
      << service.stuck;
  EXPECT_TRUE(service.state->serves());
  etcd_->set_alarm("DEACTIVATE");
  EXPECT_TRUE(is_durable(service));
  EXPECT_EQ(service.stuck, "");
}

TEST_F(EtcdStateTest, AUserLogsInAndLogsInAgain) {
  etcd_->enable_users("me", "secret", "/test/");
  client_.user = "me";
  client_.password = "wrong";
  start(0);
  ASSERT_TRUE(until([&] { return !services_[0].failures.empty(); }));
  EXPECT_NE(services_[0].failures[0].find("authentication failed"), std::string::npos)
      << services_[0].failures[0];
  client_.password = "secret";
  start(1);
  ASSERT_TRUE(has_leader());
  Service& service = services_[1];
  keep(service, "before");
  ASSERT_TRUE(is_durable(service));
  // A member that was restarted does not know the token.
  for (const char* member : {"0", "1", "2"}) {
    etcd_->kill(member);
    etcd_->start(member);
  }
  keep(service, "after");
  EXPECT_TRUE(is_durable(service));
}

// As an etcd that has only an older version of the API does, or a web server.
TEST(EtcdState, AServerThatIsNotEtcdIsReported) {
  boost::asio::io_context io;
  tcp::acceptor acceptor(io, {boost::asio::ip::address_v4::loopback(), 0});
  const std::string answer =
      "HTTP/1.1 404 Not Found\r\nContent-Length: 19\r\n\r\n404 page not found\n";
  std::vector<tcp::socket> connections;
  const std::function<void()> serve = [&] {
    acceptor.async_accept([&](const boost::system::error_code& error, tcp::socket connection) {
      if (error) return;
      boost::asio::write(connection, boost::asio::buffer(answer));
      connections.push_back(std::move(connection));
      serve();
    });
  };
  serve();
  std::vector<std::string> failures;
  bool has_led = false;
  EtcdStateEvents events;
  events.leads = [&](EtcdRevision, const JournalImage&) { has_led = true; };
  events.trouble = [&](const std::optional<Error>& why) {
    if (why) failures.push_back(why->message());
  };
  EtcdState state(io, {{{{"127.0.0.1", acceptor.local_endpoint().port()}}, nullptr}, "/test", "me"},
                  Rng(1), std::move(events));
  ASSERT_TRUE(eventually_on(io, [&] { return connections.size() > 2; }));
  EXPECT_FALSE(has_led);
  ASSERT_EQ(failures.size(), 1u);
  EXPECT_TRUE(failures[0].ends_with(": 404 page not found (expected etcd 3.4 or newer)"))
      << failures[0];
}

}  // namespace
}  // namespace ddprun
