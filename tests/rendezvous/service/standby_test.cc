// Tests Standby with a played etcd. etcd_test and the integration tests have a real one.
#include "rendezvous/service/standby.h"

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/base64.h"
#include "tests/support/accepted_session.h"
#include "tests/support/eventually.h"
#include "tests/support/held_port.h"
#include "tests/support/hello_of.h"
#include "tests/support/played_etcd_member.h"

namespace ddprun {
namespace {

using testing_support::eventually_on;
using testing_support::hello_of;
using testing_support::http_answer;
using testing_support::let_pass;
using testing_support::PlayedEtcdMember;

constexpr ServiceTerm kTerm = 5;
constexpr const char* kLease = R"("ID":"77","TTL":"2")";

class StandbyTest : public testing::Test {
 protected:
  StandbyTest() {
    member_.answer = [this](const std::string& path, const std::string& body) {
      return answer(path, body);
    };
  }
  ~StandbyTest() override {
    standby_.reset();
    role_.reset();
    sessions_->close();
  }

  // Begins. looks_on: as of EtcdRole.
  void start(std::optional<Duration> looks_on = std::nullopt) {
    EtcdStateOptions options{.client = {.endpoints = {member_.address()}, .tls = nullptr},
                             .prefix = "/test",
                             .address = own_};
    role_ = std::make_unique<EtcdRole>(
        io_, log_, std::move(options),
        EtcdRoleEvents{.store = {.durable = [](std::uint64_t) {},
                                 .failed = [](const Error&) {},
                                 .well = [] {}},
                       .leads = [this](const ServiceState&) { standby_->answer(); },
                       .resumed = [] {},
                       .stepped_down = [](const std::string&) {},
                       .has_answer = [this] { standby_->answer(); }},
        looks_on);
    standby_ = std::make_shared<Standby>(
        io_, *role_, *sessions_,
        StandbyEvents{.receive =
                          [this](AgentConnectionId id, const AgentMessage& message) {
                            EXPECT_TRUE(std::holds_alternative<Hello>(message));
                            received_.push_back(id.value);
                          },
                      .send_away =
                          [this](AgentConnectionId id, const Silence& answer) {
                            EXPECT_FALSE(sent_away_.contains(id.value)) << "twice";
                            sent_away_[id.value] = answer;
                            sessions_->close_when_sent(id);
                          }});
  }

  // Connects an agent that was served in this term last; 0: in none.
  void connect(int id, ServiceTerm served = 0) {
    Hello hello = hello_of("job", "a");
    if (served != 0) hello.assignment.emplace().term = served;
    clients_.push_back(accepted_.connect(id));
    sessions_->adopt(clients_.back().session, hello);
  }

  bool is_sent_away(int id) {
    return eventually_on(io_, [&] { return sent_away_.contains(id); });
  }
  bool follows() {
    return eventually_on(io_, [this] { return !role_->leader().empty(); });
  }

  PlayedEtcdMember::Step answer(const std::string& path, const std::string&) {
    if (is_silent_ || path == "/v3/watch") return {};
    const std::string header = R"({"header":{"revision":"9"})";
    if (path == "/v3/lease/grant") return {http_answer(header + "," + kLease + "}")};
    if (path == "/v3/lease/keepalive")
      return {http_answer(R"({"result":{"header":{},)" + std::string(kLease) + "}}")};
    const std::string created = std::to_string(kTerm);
    const std::string key = R"("kvs":[{"key":")" + to_base64("/test/leader") +
                            R"(","create_revision":")" + created + R"(","mod_revision":")" +
                            created + R"(","value":")" + to_base64(leader_) + R"(","lease":")" +
                            (leader_ == own_ ? "77" : "1") + R"("}])";
    if (path == "/v3/kv/txn")
      return {http_answer(header + R"(,"responses":[{"response_range":{)" + key + "}}]}")};
    return {http_answer(header + (leader_.empty() ? "" : "," + key) + "}")};
  }

  const std::string own_ = "10.0.0.1:29400";
  const testing_support::HeldPort other_;
  boost::asio::io_context io_{1};
  Logger log_{"test", [](std::string_view) {}};
  LimitedLog limited_log_{log_, 100, std::chrono::minutes(1)};
  ServiceCounters counters_;
  PlayedEtcdMember member_{io_};
  bool is_silent_ = false;
  std::string leader_ = other_.endpoint();  // that etcd has
  testing_support::AcceptedSessions accepted_{io_};
  std::vector<testing_support::AcceptedSession> clients_;
  std::vector<int> not_taken_;
  std::vector<int> received_;
  std::map<int, Silence> sent_away_;
  std::unique_ptr<EtcdRole> role_;
  std::shared_ptr<Standby> standby_;
  std::shared_ptr<AgentSessions> sessions_ = std::make_shared<AgentSessions>(
      limited_log_, counters_,
      AgentSessionsEvents{.message =
                              [this](const SessionPtr& session, const AgentMessage& message) {
                                if (!standby_->take(session, message))
                                  not_taken_.push_back(session->id.value);
                              },
                          .has_agent = [](AgentConnectionId) { return true; },
                          .sent = [](AgentConnectionId) {},
                          .gone = [](AgentConnectionId) {}});
};

TEST_F(StandbyTest, AnAgentThatAsksIsSentToTheLeaderThatIsFound) {
  start(/*looks_on=*/std::chrono::hours(1));
  EXPECT_TRUE(role_->leader().empty()) << "it does not look before an agent asks";
  connect(1);
  EXPECT_TRUE(sent_away_.empty());
  ASSERT_TRUE(is_sent_away(1));
  EXPECT_EQ(sent_away_[1].leader, leader_);
  EXPECT_TRUE(not_taken_.empty());
  EXPECT_TRUE(received_.empty());
}

TEST_F(StandbyTest, AnAgentIsSentAwayAtOnceUnlessItHasJustLostTheLeader) {
  start();
  ASSERT_TRUE(follows());
  connect(1);
  EXPECT_TRUE(sent_away_.contains(1)) << "it was not served before";
  connect(2, kTerm - 1);
  EXPECT_TRUE(sent_away_.contains(2)) << "the leader has changed since";
  EXPECT_EQ(sent_away_[2].leader, leader_);
  const TimePoint before = BootClock::now();
  connect(3, kTerm);
  EXPECT_FALSE(sent_away_.contains(3));
  ASSERT_TRUE(is_sent_away(3));
  EXPECT_GE(BootClock::now() - before, Standby::kElectionTime);
}

TEST_F(StandbyTest, AllWaitForTheElectionTimeOfTheFirst) {
  is_silent_ = true;
  start();
  const TimePoint before = BootClock::now();
  connect(1);
  ASSERT_TRUE(
      eventually_on(io_, [&] { return BootClock::now() - before >= Standby::kElectionTime / 2; }));
  if (BootClock::now() - before >= Standby::kElectionTime)
    GTEST_SKIP() << "the machine stood still";
  EXPECT_TRUE(sent_away_.empty());
  bool is_late = false;
  boost::asio::steady_timer late(io_, Standby::kElectionTime);
  late.async_wait([&](boost::system::error_code) { is_late = true; });
  connect(2);
  ASSERT_TRUE(is_sent_away(1));
  EXPECT_FALSE(is_late) << "the second one prolongs the wait of the first";
  EXPECT_GE(BootClock::now() - before, Standby::kElectionTime);
  EXPECT_TRUE(sent_away_.contains(2));
  EXPECT_EQ(sent_away_[2].leader, "");
  EXPECT_NE(sent_away_[2].reason, "");
  const TimePoint again = BootClock::now();
  connect(3);
  ASSERT_TRUE(is_sent_away(3));
  EXPECT_GE(BootClock::now() - again, Standby::kElectionTime) << "for the next one it begins anew";
}

TEST_F(StandbyTest, AnAgentThatSpeaksAgainIsSentAwayAtOnceAndOnlyOnce) {
  is_silent_ = true;
  start();
  connect(1);
  standby_->take(clients_[0].session, Heartbeat{1});
  EXPECT_TRUE(sent_away_.contains(1));
  connect(2);
  EXPECT_TRUE(is_sent_away(2));
}

TEST_F(StandbyTest, AnAgentThatIsGoneIsNotAnswered) {
  is_silent_ = true;
  start();
  connect(1);
  connect(2);
  connect(3);
  standby_->forget(AgentConnectionId(1));
  sessions_->close_when_sent(AgentConnectionId(2));
  ASSERT_TRUE(is_sent_away(3));
  EXPECT_EQ(sent_away_.size(), 1u);
  EXPECT_TRUE(received_.empty());
}

TEST_F(StandbyTest, AnAgentThatHasWaitedIsReceivedIfThisServiceLeads) {
  leader_ = own_;
  start();
  connect(1);
  EXPECT_TRUE(received_.empty());
  ASSERT_TRUE(eventually_on(io_, [this] { return !received_.empty(); }));
  EXPECT_EQ(received_, std::vector{1});
  connect(2);
  EXPECT_EQ(not_taken_, std::vector{2}) << "the table takes it at once";
  EXPECT_TRUE(sent_away_.empty());
  standby_->answer();
  EXPECT_EQ(received_.size(), 1u);
}

// The timer has fired, and its handler is in the queue after the one that ends the object.
TEST_F(StandbyTest, NoCallbackFollowsItsEnd) {
  is_silent_ = true;
  start();
  boost::asio::steady_timer first(io_, Standby::kElectionTime / 2);
  bool has_ended = false;
  first.async_wait([&](boost::system::error_code) {
    standby_.reset();
    has_ended = true;
  });
  connect(1);
  let_pass(Standby::kElectionTime);
  io_.poll();
  EXPECT_TRUE(has_ended);
  EXPECT_TRUE(sent_away_.empty());
  EXPECT_TRUE(received_.empty());
}

}  // namespace
}  // namespace ddprun
