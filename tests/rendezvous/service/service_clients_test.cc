#include "rendezvous/service/service_clients.h"

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "rendezvous/net/listen.h"
#include "tests/support/control_frame.h"
#include "tests/support/eventually.h"
#include "tests/support/hello_of.h"
#include "tests/support/raw_tcp_client.h"

namespace ddprun {
namespace {

using testing_support::await;
using testing_support::can_connect;
using testing_support::eventually_on;
using testing_support::hello_of;
using testing_support::RawTcpClient;
using testing_support::say;

class ServiceClientsTest : public testing::Test {
 protected:
  ~ServiceClientsTest() override { clients_->close(); }

  AgentConnectionId attach() {
    return clients_->attach([this](const ServiceMessage&) { ++delivered_; }, nullptr);
  }
  std::optional<AgentConnectionId> begin_page() {
    return clients_->begin_page(false,
                                [this](const HttpPage& page) { statuses_.push_back(page.status); });
  }
  // Connects an agent, and waits for its Hello.
  std::unique_ptr<RawTcpClient> connect() {
    auto client = std::make_unique<RawTcpClient>(port_);
    say(*client, hello_of("job", "a"));
    EXPECT_TRUE(eventually_on(io_, [this] { return session_ != nullptr; }));
    return client;
  }

  boost::asio::io_context io_{1};
  Listener listener_ = listen_tcp({"127.0.0.1", 0}).value();
  const std::uint16_t port_ = listener_.address.port;
  LimitedLog log_{[](LogLevel, const std::string&) {}, 100, std::chrono::minutes(1)};
  ServiceCounters counters_;
  int delivered_ = 0;
  std::vector<int> statuses_;
  SessionPtr session_;  // that has sent a message
  int sent_ = 0;
  std::vector<AgentConnectionId> gone_;
  std::vector<AgentConnectionId> asked_;  // for output
  std::shared_ptr<ServiceClients> clients_ = std::make_shared<ServiceClients>(
      io_, log_, counters_, ServiceOptions{}, std::move(listener_.socket),
      ServiceClientsEvents{
          .message = [this](const SessionPtr& session, const AgentMessage&) { session_ = session; },
          .has_agent = [](AgentConnectionId) { return true; },
          .is_own = [](const Hello&) { return false; },
          .http = [](const TransportPtr&, const std::string&) {},
          .has_room = [](AgentConnectionId) {},
          .follows = [this](AgentConnectionId id, const UserRequest&) { asked_.push_back(id); },
          .sent = [this] { ++sent_; },
          .gone = [this](AgentConnectionId id) { gone_.push_back(id); }});
};

TEST_F(ServiceClientsTest, AMessageIsDeliveredToTheClientOfItsNumber) {
  ASSERT_TRUE(clients_->start());
  const auto client = connect();
  const AgentConnectionId local = attach();
  const auto page = begin_page();
  ASSERT_TRUE(session_ && page);
  clients_->deliver(session_->id, Wait{"on TCP"}, /*is_last=*/false);
  EXPECT_FALSE(clients_->has_sent_all());
  clients_->flush();
  EXPECT_TRUE(clients_->has_sent_all());
  EXPECT_EQ(sent_, 1);
  const auto wait = await<Wait>(*client);
  ASSERT_TRUE(wait);
  EXPECT_EQ(wait->reason, "on TCP");
  clients_->deliver(local, Wait{"here"}, /*is_last=*/false);
  EXPECT_TRUE(eventually_on(io_, [this] { return delivered_ == 1; }));
  clients_->deliver(*page, Answer{.done = true}, /*is_last=*/true);
  EXPECT_EQ(statuses_, std::vector{200});
  clients_->deliver(AgentConnectionId(4711), Wait{"gone"}, /*is_last=*/true);
  EXPECT_EQ(delivered_, 1);
}

TEST_F(ServiceClientsTest, TheTableLearnsWhoHasSentAMessage) {
  ASSERT_TRUE(clients_->start());
  const auto client = connect();
  const AgentConnectionId local = attach();
  const auto page = begin_page();
  ASSERT_TRUE(session_ && page);
  EXPECT_TRUE(clients_->origin_of(local).local);
  EXPECT_FALSE(clients_->origin_of(*page).local);
  const JobTable::Origin tcp = clients_->origin_of(session_->id);
  EXPECT_FALSE(tcp.local);
  EXPECT_EQ(tcp.peer_address, "127.0.0.1");
  EXPECT_EQ(tcp.service_address, "127.0.0.1");
}

TEST_F(ServiceClientsTest, AClientOnTcpIsClosedAfterItsLastMessage) {
  ASSERT_TRUE(clients_->start());
  const auto client = connect();
  ASSERT_TRUE(session_);
  EXPECT_EQ(clients_->connections(), 1u);
  clients_->deliver(session_->id, Silence{"over"}, /*is_last=*/true);
  clients_->flush();
  ASSERT_TRUE(eventually_on(io_, [this] { return !gone_.empty(); }));
  EXPECT_EQ(gone_, std::vector{session_->id});
  EXPECT_EQ(clients_->connections(), 0u);
  EXPECT_TRUE(await<Silence>(*client));
  EXPECT_TRUE(client->is_closed());
}

// The table may be in the middle of an event.
TEST_F(ServiceClientsTest, TheEndOfAPageIsReportedLaterAndNotAfterTheClose) {
  const auto first = begin_page();
  ASSERT_TRUE(first);
  EXPECT_TRUE(clients_->has_sent_all(*first));
  clients_->end_pages(text_page("over", 503));
  EXPECT_EQ(statuses_, std::vector{503});
  EXPECT_FALSE(clients_->has_sent_all(*first));
  EXPECT_TRUE(gone_.empty());
  io_.poll();
  EXPECT_EQ(gone_, std::vector{*first});
  ASSERT_TRUE(begin_page());
  clients_->end_pages(text_page("over", 503));
  clients_->close();
  io_.restart();
  io_.run();
  EXPECT_EQ(gone_.size(), 1u);
}

TEST_F(ServiceClientsTest, ABrowserThatFollowsOutputIsAClient) {
  std::shared_ptr<HttpFeed> feed = clients_->follow("job", Rank(0), "a browser");
  EXPECT_TRUE(asked_.empty()) << "it has not begun";
  int woken = 0;
  feed->begin([&] { ++woken; });
  ASSERT_EQ(asked_.size(), 1u);
  const AgentConnectionId id = asked_.front();
  EXPECT_FALSE(clients_->origin_of(id).local);
  EXPECT_TRUE(clients_->has_sent_all(id));
  clients_->deliver(id, Answer{.number = 1, .done = true, .more = true}, /*is_last=*/false);
  EXPECT_EQ(woken, 1);
  feed.reset();
  EXPECT_FALSE(clients_->has_sent_all(id));
  EXPECT_TRUE(gone_.empty()) << "the table may be in the middle of an event";
  io_.poll();
  EXPECT_EQ(gone_, asked_);

  feed = clients_->follow("job", Rank(0), "a browser");
  feed->begin([] {});
  clients_->close();
  feed.reset();
  io_.restart();
  io_.run();
  EXPECT_EQ(gone_.size(), 1u);
}

// A browser that stays connected after the end does not keep others out.
TEST_F(ServiceClientsTest, OutputIsNotCountedAfterItsLastMessage) {
  std::vector<std::shared_ptr<HttpFeed>> open;
  const auto follow = [&] {
    open.push_back(clients_->follow("job", Rank(0), "a test"));
    open.back()->begin([] {});
  };
  const std::vector<ServiceMessage> last{End{}, Answer{.done = false, .text = "x"}, Silence{"x"}};
  for (std::size_t i = 0; i < 3 * RankTails::kOfJob; ++i) {
    follow();
    ASSERT_EQ(asked_.size(), i + 1);
    clients_->deliver(asked_.back(), Silence{"a node is lost"}, /*is_last=*/false);
    EXPECT_TRUE(clients_->has_sent_all(asked_.back()));
    const ServiceMessage& message = last[i % last.size()];
    clients_->deliver(asked_.back(), message, std::holds_alternative<Silence>(message));
    EXPECT_FALSE(clients_->has_sent_all(asked_.back()));
    EXPECT_NE(open.back()->take().find("event: end\n"), std::string::npos);
  }
  io_.poll();
  EXPECT_EQ(gone_, asked_);
  open.clear();
  io_.restart();
  io_.poll();
  EXPECT_EQ(gone_, asked_) << "the end is reported once";
}

TEST_F(ServiceClientsTest, NewClientsCannotConnectDuringTheDrain) {
  ASSERT_TRUE(clients_->start());
  EXPECT_TRUE(can_connect(port_));
  clients_->drain();
  io_.poll();
  EXPECT_FALSE(can_connect(port_));
}

TEST_F(ServiceClientsTest, AServiceOfOneProcessDoesNotListen) {
  const auto alone = std::make_shared<ServiceClients>(io_, log_, counters_, ServiceOptions{},
                                                      UniqueFd(), ServiceClientsEvents{});
  EXPECT_FALSE(alone->start());
  alone->close();
}

}  // namespace
}  // namespace ddprun
