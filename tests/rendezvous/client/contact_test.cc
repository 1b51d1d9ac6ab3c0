// Tests one connection of an agent to services that the test plays.
#include "rendezvous/client/contact.h"

#include <gtest/gtest.h>

#include <boost/asio/io_context.hpp>
#include <utility>

#include "tests/support/eventually.h"
#include "tests/support/hello_of.h"
#include "tests/support/played_service.h"

namespace ddprun {
namespace {

using boost::asio::ip::tcp;
using testing_support::eventually_on;
using testing_support::PlayedService;

// Holds a contact as RemoteLink does, and notes what it reports.
struct Owner : ContactOwner, std::enable_shared_from_this<Owner> {
  bool is_taken(const tcp::endpoint& endpoint) const override {
    return endpoint == taken || (contact && contact->is_open() && contact->endpoint() == endpoint);
  }
  void connected(Contact& contact) override { connected_to = contact.endpoint(); }
  Hello hello(const std::string&) override {
    if (closes_at_hello) contact->close();
    return testing_support::hello_of("job", "a");
  }
  bool demands_proof() const override { return false; }
  void heard() override {}
  void proved() override {}
  void refused_unproven(Contact&, const std::string&) override {}
  void received(Contact& contact, const ServiceMessage&) override {
    ++messages;
    if (closes) contact.close();
  }
  void ended(Contact&, std::optional<Ending> how) override {
    has_ended = true;
    ending = std::move(how);
  }

  void contact_with(boost::asio::io_context& io, std::vector<tcp::endpoint> endpoints) {
    contact = std::make_shared<Contact>(io, shared_from_this(), 0, std::move(endpoints),
                                        ContactSecurity{.key = key});
    contact->connect_next();
  }

  Secret key{};
  tcp::endpoint taken;
  bool closes_at_hello = false;
  bool closes = false;
  std::shared_ptr<Contact> contact;
  tcp::endpoint connected_to;
  int messages = 0;
  bool has_ended = false;
  std::optional<Ending> ending;
};

tcp::endpoint endpoint_of(const PlayedService& service) {
  return {boost::asio::ip::address_v4::loopback(), service.address().port};
}

class ContactTest : public testing::Test {
 protected:
  ~ContactTest() override {
    if (owner_->contact) owner_->contact->close();
  }
  template <class Condition>
  bool run_until(Condition&& condition) {
    return eventually_on(io_, condition);
  }
  // Returns an endpoint that refuses connections.
  tcp::endpoint free_endpoint() { return endpoint_of(PlayedService(io_)); }
  bool is_connected() {
    owner_->contact_with(io_, {endpoint_of(service_)});
    return run_until([this] { return service_.has_accepted() && service_.has_heard("hello"); });
  }
  void send_more_than_the_kernel_takes() {
    const Leave leave{.reason = std::string(1 << 19, 'x')};
    for (int i = 0; i < 64; ++i) owner_->contact->send(leave);
  }

  boost::asio::io_context io_{1};
  PlayedService service_{io_};
  const std::shared_ptr<Owner> owner_ = std::make_shared<Owner>();
};

TEST_F(ContactTest, TriesItsEndpointsInTurn) {
  const tcp::endpoint first = free_endpoint();
  const tcp::endpoint last = free_endpoint();
  owner_->contact_with(io_, {first, endpoint_of(service_), last});
  EXPECT_EQ(owner_->contact->endpoint(), first);
  ASSERT_TRUE(run_until([&] { return service_.has_accepted() && service_.has_heard("hello"); }));
  EXPECT_EQ(owner_->connected_to, endpoint_of(service_));
  EXPECT_EQ(owner_->contact->next(), last);
  EXPECT_FALSE(owner_->has_ended);
}

TEST_F(ContactTest, IsRefusedIfEachEndpointRefuses) {
  owner_->contact_with(io_, {free_endpoint(), free_endpoint()});
  ASSERT_TRUE(run_until([&] { return owner_->has_ended; }));
  ASSERT_TRUE(owner_->ending);
  EXPECT_EQ(owner_->ending->how, Ending::How::kConnectionRefused);
  EXPECT_FALSE(owner_->contact->is_open());
}

TEST_F(ContactTest, PassesOverAnEndpointThatAnotherContactHas) {
  owner_->taken = endpoint_of(service_);
  owner_->contact_with(io_, {endpoint_of(service_)});
  EXPECT_TRUE(owner_->has_ended);
  EXPECT_FALSE(owner_->ending) << "it has no answer of its own";
}

// One look-up may return an address twice.
TEST_F(ContactTest, ItsOwnEndpointIsNotTaken) {
  const tcp::endpoint refuses = free_endpoint();
  owner_->contact_with(io_, {refuses, refuses});
  ASSERT_TRUE(run_until([&] { return owner_->has_ended; }));
  EXPECT_TRUE(owner_->ending);
}

TEST_F(ContactTest, EndsAtBytesThatAreNoMessage) {
  ASSERT_TRUE(is_connected());
  service_.say("HTTP/1.1 400 Bad Request\r\n\r\n");
  ASSERT_TRUE(run_until([&] { return owner_->has_ended; }));
  ASSERT_TRUE(owner_->ending);
  EXPECT_EQ(owner_->ending->how, Ending::How::kGarbled);
}

TEST_F(ContactTest, ReportsNoMessageThatFollowsItsEnd) {
  ASSERT_TRUE(is_connected());
  owner_->closes = true;
  const std::string message = *encode(ServiceMessage(Wait{"for others"}));
  service_.say(message + message);
  ASSERT_TRUE(run_until([&] { return owner_->messages > 0; }));
  EXPECT_EQ(owner_->messages, 1);
  EXPECT_FALSE(owner_->has_ended);
  const std::weak_ptr<Contact> contact = std::exchange(owner_->contact, nullptr);
  EXPECT_TRUE(run_until([&] { return contact.expired(); })) << "no operation is left";
  EXPECT_EQ(owner_.use_count(), 1);
}

TEST_F(ContactTest, LeavesAServiceThatReadsNothing) {
  ASSERT_TRUE(is_connected());
  send_more_than_the_kernel_takes();
  bool has_left = false;
  const TimePoint began = BootClock::now();
  owner_->contact->leave([&] { has_left = true; });
  EXPECT_FALSE(has_left);
  ASSERT_TRUE(run_until([&] { return has_left; }));
  EXPECT_GE(BootClock::now() - began, Contact::kFarewellTime);
  EXPECT_FALSE(owner_->contact->is_open());
  EXPECT_FALSE(owner_->has_ended);
}

TEST_F(ContactTest, HasLeftWhenAMessageThatFollowsCannotBeSent) {
  ASSERT_TRUE(is_connected());
  send_more_than_the_kernel_takes();
  bool has_left = false;
  owner_->contact->leave([&] { has_left = true; });
  owner_->contact->send(Leave{.reason = std::string(kMaxControlFrameBytes, 'x')});
  EXPECT_TRUE(has_left);
  EXPECT_FALSE(owner_->has_ended) << "no call follows leave()";
}

TEST_F(ContactTest, MayBeClosedWhenItAsksForTheHello) {
  owner_->closes_at_hello = true;
  owner_->key = Secret("key");
  owner_->contact_with(io_, {endpoint_of(service_)});
  ASSERT_TRUE(run_until([&] { return !owner_->contact->is_open(); }));
  EXPECT_FALSE(owner_->has_ended);
}

TEST_F(ContactTest, DoesNotLeaveOnceItIsClosed) {
  ASSERT_TRUE(is_connected());
  send_more_than_the_kernel_takes();
  bool has_left = false;
  owner_->contact->leave([&] { has_left = true; });
  owner_->contact->close();
  const std::weak_ptr<Contact> contact = std::exchange(owner_->contact, nullptr);
  EXPECT_TRUE(run_until([&] { return contact.expired(); }));
  EXPECT_FALSE(has_left);
}

}  // namespace
}  // namespace ddprun
