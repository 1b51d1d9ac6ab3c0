#include "rendezvous/service/agent_sessions.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <optional>

#include "rendezvous/service/server.h"
#include "tests/support/accepted_session.h"
#include "tests/support/control_frame.h"
#include "tests/support/eventually.h"

namespace ddprun {
namespace {

using testing_support::AcceptedSession;
using testing_support::AcceptedSessions;
using testing_support::await;
using testing_support::eventually_on;
using testing_support::frame_of;
using testing_support::RawTcpClient;

constexpr AgentConnectionId kId{7};

std::string heartbeat(std::uint64_t number) { return *encode(AgentMessage(Heartbeat{number})); }

class AgentSessionsTest : public testing::Test {
 protected:
  ~AgentSessionsTest() override {
    sessions_->close();
    if (one_) one_->session->wire->close();
  }

  // Connects a client. later: bytes that have come after its first message.
  RawTcpClient& adopt(const AgentMessage& first = Heartbeat{1}, const std::string& later = "") {
    one_ = accepted_.connect(kId.value);
    one_->session->frames.append(later);
    sessions_->adopt(one_->session, first);
    return *one_->client;
  }

  template <class Condition>
  bool until(Condition&& condition) {
    return eventually_on(io_, condition);
  }
  bool is_gone() {
    return until([this] { return !gone_.empty(); });
  }
  bool has_heartbeats(const std::vector<std::uint64_t>& numbers) {
    return until([&] { return heartbeats_.size() >= numbers.size(); }) && heartbeats_ == numbers;
  }
  // Says messages until this many bytes wait in the session.
  void say_until_unsent(std::size_t bytes) {
    const ServiceMessage message = Wait{std::string(64 * 1024, '.')};
    const std::size_t size = encode(message)->size();
    while (one_->session->unsent_bytes() + size <= bytes) ASSERT_TRUE(sessions_->say(kId, message));
  }

  boost::asio::io_context io_{1};
  AcceptedSessions accepted_{io_};
  std::vector<std::string> warnings_;
  LimitedLog log_{[this](LogLevel, const std::string& text) { warnings_.push_back(text); }, 100,
                  std::chrono::minutes(1)};
  ServiceCounters counters_;
  bool is_agent_ = true;
  std::vector<std::uint64_t> heartbeats_;
  int requests_ = 0;
  std::function<void()> on_message_ = [] {};
  std::vector<AgentConnectionId> sent_;
  std::vector<AgentConnectionId> gone_;
  std::optional<AcceptedSession> one_;
  std::shared_ptr<AgentSessions> sessions_ = std::make_shared<AgentSessions>(
      log_, counters_,
      AgentSessionsEvents{.message =
                              [this](const SessionPtr& session, const AgentMessage& message) {
                                EXPECT_EQ(session, one_->session);
                                const Heartbeat* const beat = std::get_if<Heartbeat>(&message);
                                if (beat) heartbeats_.push_back(beat->number);
                                if (std::holds_alternative<UserRequest>(message)) ++requests_;
                                on_message_();
                              },
                          .has_agent = [this](AgentConnectionId) { return is_agent_; },
                          .sent = [this](AgentConnectionId id) { sent_.push_back(id); },
                          .gone = [this](AgentConnectionId id) { gone_.push_back(id); }});
};

TEST_F(AgentSessionsTest, MessagesComeInTheirOrderAlsoThoseAfterTheFirst) {
  RawTcpClient& client = adopt(Heartbeat{1}, heartbeat(2) + heartbeat(3).substr(0, 5));
  EXPECT_EQ(heartbeats_, (std::vector<std::uint64_t>{1, 2}));
  const std::string rest = heartbeat(3).substr(5) + heartbeat(4);
  client.send(rest);
  EXPECT_TRUE(has_heartbeats({1, 2, 3, 4}));
  EXPECT_EQ(counters_.bytes_received, rest.size()) << "without those that came before";
}

TEST_F(AgentSessionsTest, APeerThatDisconnectsIsGoneWithoutAWarning) {
  RawTcpClient& client = adopt();
  client.close();
  EXPECT_TRUE(is_gone());
  EXPECT_EQ(gone_, std::vector{kId});
  EXPECT_EQ(sessions_->size(), 0u);
  EXPECT_EQ(warnings_, std::vector<std::string>());
  EXPECT_FALSE(sessions_->say(kId, Wait{"for others"}));
}

TEST_F(AgentSessionsTest, APeerThatBreaksTheProtocolIsClosedWithAWarning) {
  const std::vector<std::pair<std::string, std::string>> cases{
      {"GET / HTTP/1.1\r\n\r\n", "it does not begin with"},
      {frame_of("{"), "read a control message"},
      {frame_of(R"({"type":"heartbeat","number":"one"})"), "read a control message"},
      {std::string(kControlMagic) + "\xff\xff\xff\xff", "read a control frame"}};
  for (const auto& [bytes, why] : cases) {
    gone_.clear();
    warnings_.clear();
    RawTcpClient& client = adopt();
    client.send(bytes);
    ASSERT_TRUE(is_gone()) << why;
    EXPECT_EQ(gone_, std::vector{kId});
    ASSERT_EQ(warnings_.size(), 1u) << why;
    EXPECT_NE(warnings_[0].find("closed the connection of 127.0.0.1"), std::string::npos);
    EXPECT_NE(warnings_[0].find(why), std::string::npos) << warnings_[0];
    EXPECT_TRUE(client.is_closed());
  }
}

TEST_F(AgentSessionsTest, OnlyAnAgentMaySendSeveralRequests) {
  const std::string request = *encode(AgentMessage(UserRequest{}));
  adopt(UserRequest{}, request);
  EXPECT_EQ(requests_, 2);
  EXPECT_TRUE(gone_.empty());
  sessions_->close();
  is_agent_ = false;
  adopt(UserRequest{}, request);
  EXPECT_EQ(requests_, 3) << "the second one of a command was taken";
  EXPECT_EQ(gone_, std::vector{kId});
  ASSERT_EQ(warnings_.size(), 1u);
  EXPECT_NE(warnings_[0].find("only agents may send several requests"), std::string::npos);
}

TEST_F(AgentSessionsTest, OnlyAnAgentMaySendMessagesOfALaterVersion) {
  const std::string later = frame_of(R"({"type":"fireworks"})");
  adopt(Heartbeat{1}, later + heartbeat(2));
  EXPECT_EQ(heartbeats_, (std::vector<std::uint64_t>{1, 2}));
  EXPECT_TRUE(gone_.empty());
  sessions_->close();
  is_agent_ = false;
  adopt(Heartbeat{3}, later + heartbeat(4));
  EXPECT_EQ(heartbeats_, (std::vector<std::uint64_t>{1, 2, 3}));
  EXPECT_EQ(gone_, std::vector{kId});
}

TEST_F(AgentSessionsTest, AMessageIsSentByTheNextFlush) {
  RawTcpClient& client = adopt();
  EXPECT_TRUE(sessions_->say(kId, Wait{"for others"}));
  EXPECT_FALSE(sessions_->has_sent_all());
  EXPECT_FALSE(sessions_->has_sent_all(kId));
  EXPECT_FALSE(client.has_bytes());
  sessions_->flush();
  EXPECT_EQ(sent_, std::vector{kId});
  EXPECT_TRUE(sessions_->has_sent_all());
  EXPECT_TRUE(sessions_->has_sent_all(kId));
  EXPECT_EQ(counters_.bytes_sent, encode(ServiceMessage(Wait{"for others"}))->size());
  const auto wait = await<Wait>(client);
  ASSERT_TRUE(wait);
  EXPECT_EQ(wait->reason, "for others");
  sessions_->flush();
  EXPECT_EQ(sent_.size(), 1u) << "nothing was said since";
}

TEST_F(AgentSessionsTest, ASessionThatDoesNotReadIsClosedAtTheLimit) {
  adopt();
  say_until_unsent(RendezvousServer::kMaxUnsentBytes);
  EXPECT_TRUE(gone_.empty());
  EXPECT_TRUE(sessions_->say(kId, Wait{std::string(64 * 1024, '.')}));
  EXPECT_EQ(gone_, std::vector{kId});
  ASSERT_EQ(warnings_.size(), 1u);
  EXPECT_NE(warnings_[0].find("it does not read its messages"), std::string::npos);
  EXPECT_FALSE(sessions_->say(kId, Wait{"for others"}));
  sessions_->flush();  // it was to be flushed
  EXPECT_TRUE(sent_.empty());
}

TEST_F(AgentSessionsTest, ASessionIsClosedWhenAllIsSentAndIsNotListenedToBefore) {
  RawTcpClient& client = adopt();
  EXPECT_EQ(sessions_->find(kId), one_->session);
  say_until_unsent(RendezvousServer::kMaxUnsentBytes);
  sessions_->close_when_sent(kId);
  sessions_->flush();
  EXPECT_EQ(sessions_->find(kId), nullptr);
  EXPECT_EQ(sessions_->ids(), std::vector{kId}) << "it has not ended";
  client.send(heartbeat(2));
  io_.poll();
  EXPECT_TRUE(gone_.empty()) << "before all is sent";
  std::size_t received = 0;
  ASSERT_TRUE(until([&] {
    while (client.has_bytes()) received += client.receive_some().size();
    return !gone_.empty();
  }));
  while (true) {
    const std::size_t some = client.receive_some().size();
    if (some == 0) break;
    received += some;
  }
  EXPECT_GT(received, RendezvousServer::kMaxUnsentBytes / 2);
  EXPECT_EQ(received, counters_.bytes_sent);
  EXPECT_EQ(gone_, std::vector{kId});
  EXPECT_TRUE(sent_.empty()) << "gone says it";
  EXPECT_EQ(heartbeats_, std::vector<std::uint64_t>{1});
  sessions_->close_when_sent(kId);
  sessions_->flush();
  EXPECT_EQ(gone_.size(), 1u);
}

TEST_F(AgentSessionsTest, FramesAfterTheMessageThatClosesAreIgnored) {
  on_message_ = [this] { sessions_->close_when_sent(kId); };
  adopt(Heartbeat{1}, heartbeat(2));
  EXPECT_EQ(heartbeats_, std::vector<std::uint64_t>{1});
}

TEST_F(AgentSessionsTest, WhatIsSaidDuringTheDrainIsIgnoredButAnEndIsSeen) {
  RawTcpClient& client = adopt();
  sessions_->drain();
  client.send(heartbeat(2));
  client.close();
  EXPECT_TRUE(is_gone());
  EXPECT_EQ(heartbeats_, std::vector<std::uint64_t>{1});
  EXPECT_EQ(counters_.bytes_received, 0u);
}

TEST_F(AgentSessionsTest, NoCallbackFollowsTheClose) {
  RawTcpClient& client = adopt();
  io_.poll();  // the read waits
  say_until_unsent(RendezvousServer::kMaxUnsentBytes);
  sessions_->flush();  // and a write
  sessions_->close();
  EXPECT_EQ(sessions_->size(), 0u);
  client.offer(heartbeat(2));
  client.close();
  io_.run();
  EXPECT_EQ(heartbeats_, std::vector<std::uint64_t>{1});
  EXPECT_TRUE(gone_.empty());
  EXPECT_TRUE(sent_.empty());
}

TEST_F(AgentSessionsTest, AMessageMayEndAllSessionsFromWithin) {
  on_message_ = [this] { sessions_->close(); };
  RawTcpClient& client = adopt(Heartbeat{1}, heartbeat(2));
  EXPECT_EQ(heartbeats_, std::vector<std::uint64_t>{1});
  ASSERT_TRUE(client.is_closed());
  io_.run();
  EXPECT_TRUE(gone_.empty());
}

// A pending read alone holds it.
TEST_F(AgentSessionsTest, TheLastOwnerMayGoWhileAReadWaits) {
  adopt();
  const std::weak_ptr<AgentSessions> weak = sessions_;
  sessions_->close();
  sessions_ = std::make_shared<AgentSessions>(log_, counters_, AgentSessionsEvents{});
  io_.run();
  EXPECT_TRUE(weak.expired());
}

TEST_F(AgentSessionsTest, OnlyAConnectionThatFollowsIsKeptAlive) {
  const auto keeps_alive = [this] {
    int value = -1;
    socklen_t size = sizeof value;
    const int socket = one_->session->wire->socket().native_handle();
    EXPECT_EQ(getsockopt(socket, SOL_SOCKET, SO_KEEPALIVE, &value, &size), 0);
    return value != 0;
  };
  adopt(UserRequest{});
  EXPECT_FALSE(keeps_alive());
  sessions_->close();
  adopt(UserRequest{.follow = true});
  EXPECT_TRUE(keeps_alive());
}

}  // namespace
}  // namespace ddprun
