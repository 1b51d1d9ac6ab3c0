// Tests EtcdClient with played members. etcd_state_test has a real etcd.
#include "rendezvous/persistence/etcd_client.h"

#include <gtest/gtest.h>

#include <boost/asio/ip/tcp.hpp>
#include <deque>
#include <memory>
#include <optional>

#include "rendezvous/transport/transport.h"
#include "tests/support/certificates.h"
#include "tests/support/eventually.h"
#include "tests/support/temporary_directory.h"

namespace ddprun {
namespace {

using boost::asio::ip::tcp;
using testing_support::eventually_on;
using namespace std::chrono_literals;

std::string answer_of(const std::string& body, const std::string& more = "") {
  return "HTTP/1.1 200 OK\r\n" + more + "Content-Length: " + std::to_string(body.size()) +
         "\r\n\r\n" + body;
}

// Step: what a member does after a request.
struct Step {
  std::string bytes;  // sent
  bool closes = false;
};

// PlayedMember: takes connections, and answers the requests by its steps. Without a step, it
// answers with the request's body.
class PlayedMember {
 public:
  explicit PlayedMember(boost::asio::io_context& io, TlsContextPtr tls = nullptr)
      : acceptor_(io, {boost::asio::ip::address_v4::loopback(), 0}), tls_(std::move(tls)) {
    accept();
  }
  ~PlayedMember() {
    for (const auto& one : connections_) one->transport->close();
  }

  HostPort address() const { return {"localhost", acceptor_.local_endpoint().port()}; }
  std::size_t accepted() const { return connections_.size(); }
  std::size_t open() const {
    return static_cast<std::size_t>(std::ranges::count_if(
        connections_, [](const auto& one) { return one->transport->is_open(); }));
  }
  // Sends bytes on the newest connection.
  void send(const std::string& bytes) { perform(*connections_.back(), {bytes}); }
  void close_newest() { connections_.back()->transport->close(); }

  std::deque<Step> steps;
  std::vector<std::string> requests;  // their bodies

 private:
  struct Connection {
    TransportPtr transport;
    std::string received;
    std::deque<std::string> sent;  // stays valid
  };

  void accept() {
    acceptor_.async_accept([this](const boost::system::error_code& error, tcp::socket socket) {
      if (error) return;
      connections_.push_back(std::make_shared<Connection>());
      Connection& connection = *connections_.back();
      connection.transport = std::make_shared<Transport>(std::move(socket));
      if (tls_) connection.transport->start_tls(TlsChannel::service(tls_));
      read(connection);
      accept();
    });
  }

  void read(Connection& connection) {
    connection.transport->read([this, &connection](const Result<std::string_view>& bytes) {
      if (!bytes) return connection.transport->close();
      connection.received += *bytes;
      take(connection);
      if (connection.transport->is_open()) read(connection);
    });
  }

  void take(Connection& connection) {
    const std::size_t head = connection.received.find("\r\n\r\n");
    const std::size_t length = connection.received.find("Content-Length: ");
    if (head == std::string::npos || length == std::string::npos) return;
    const std::size_t size = std::stoul(connection.received.substr(length + 16));
    if (connection.received.size() < head + 4 + size) return;
    requests.push_back(connection.received.substr(head + 4, size));
    connection.received.erase(0, head + 4 + size);
    Step step{answer_of(requests.back())};
    if (!steps.empty()) {
      step = steps.front();
      steps.pop_front();
    }
    perform(connection, step);
  }

  void perform(Connection& connection, const Step& step) {
    if (step.bytes.empty()) {
      if (step.closes) connection.transport->close();
      return;
    }
    connection.sent.push_back(step.bytes);
    connection.transport->write(
        {boost::asio::buffer(connection.sent.back())},
        [transport = connection.transport, closes = step.closes](const Result<void>&) {
          if (closes) transport->close();
        });
  }

  tcp::acceptor acceptor_;
  TlsContextPtr tls_;
  std::vector<std::shared_ptr<Connection>> connections_;
};

const Step kSilent{};
const Step kCloses{.bytes = "", .closes = true};
constexpr Duration kLong = std::chrono::seconds(40);

class EtcdClientTest : public testing::Test {
 protected:
  EtcdClient& client() {
    if (client_) return *client_;
    for (const auto& member : members_) options_.endpoints.push_back(member->address());
    return client_.emplace(io_, options_);
  }
  PlayedMember& add_member(TlsContextPtr tls = nullptr) {
    members_.push_back(std::make_unique<PlayedMember>(io_, std::move(tls)));
    return *members_.back();
  }

  // Begins a call. Its result comes at the index that is returned.
  std::size_t begin(const std::string& body, bool is_repeatable = true, Duration allowed = kLong) {
    const std::size_t index = results_.size();
    results_.emplace_back();
    client().call({"/v3/test", body, is_repeatable}, allowed,
                  [this, index](const Result<std::string>& result) {
                    EXPECT_FALSE(results_[index]) << "called back twice";
                    results_[index] = result;
                  });
    return index;
  }
  Result<std::string> end(std::size_t index) {
    EXPECT_TRUE(eventually_on(io_, [&] { return results_[index].has_value(); }));
    return results_[index].value_or(Error{.kind = ErrorKind::kTimeout, .cause = "no call back"});
  }
  Result<std::string> call(const std::string& body, bool is_repeatable = true,
                           Duration allowed = kLong) {
    return end(begin(body, is_repeatable, allowed));
  }
  void expect_answer(const Result<std::string>& result, const std::string& body) {
    ASSERT_TRUE(result) << result.error().message();
    EXPECT_EQ(*result, body);
  }
  void expect_failure(const Result<std::string>& result, ErrorKind kind) {
    ASSERT_FALSE(result) << *result;
    EXPECT_EQ(result.error().kind, kind) << result.error().message();
  }

  boost::asio::io_context io_;
  std::vector<std::unique_ptr<PlayedMember>> members_;
  EtcdClientOptions options_;
  std::deque<std::optional<Result<std::string>>> results_;
  std::optional<EtcdClient> client_;
};

TEST_F(EtcdClientTest, CallsShareAConnection) {
  PlayedMember& member = add_member();
  for (const char* body : {"one", "two", "three"}) expect_answer(call(body), body);
  EXPECT_EQ(member.accepted(), 1u);
}

TEST_F(EtcdClientTest, CallsAtTheSameTimeHaveConnectionsOfTheirOwnAndOneIsKept) {
  PlayedMember& member = add_member();
  const std::size_t first = begin("first");
  const std::size_t second = begin("second");
  expect_answer(end(first), "first");
  expect_answer(end(second), "second");
  EXPECT_EQ(member.accepted(), 2u);
  EXPECT_TRUE(eventually_on(io_, [&] { return member.open() == 1; }));
  expect_answer(call("third"), "third");
  EXPECT_EQ(member.accepted(), 2u);
}

TEST_F(EtcdClientTest, AnUnusedConnectionIsClosed) {
  options_.kept_for = 50ms;
  PlayedMember& member = add_member();
  expect_answer(call("first"), "first");
  EXPECT_TRUE(eventually_on(io_, [&] { return member.open() == 0; }));
  expect_answer(call("second"), "second");
}

TEST_F(EtcdClientTest, AMemberThatClosesAfterEachAnswerHarmsNothing) {
  PlayedMember& member = add_member();
  for (const char* body : {"one", "two", "three"}) {
    member.steps = {{answer_of(body), /*closes=*/true}};
    expect_answer(call(body), body);
    ASSERT_TRUE(eventually_on(io_, [&] { return member.open() == 0; }));
  }
  EXPECT_EQ(member.requests.size(), 3u);
}

TEST_F(EtcdClientTest, AMemberThatAnnouncesToCloseIsNotAskedOnThatConnection) {
  PlayedMember& member = add_member();
  member.steps = {{answer_of("one", "Connection: close\r\n")}};
  expect_answer(call("one"), "one");
  expect_answer(call("two", /*is_repeatable=*/false), "two");
  EXPECT_EQ(member.accepted(), 2u);
}

// The member closes while the request is on its way.
TEST_F(EtcdClientTest, ARequestOnAConnectionThatHasClosedIsRepeatedOnce) {
  PlayedMember& member = add_member();
  expect_answer(call("first"), "first");
  member.steps = {kCloses};
  expect_answer(call("second"), "second");
  EXPECT_EQ(member.accepted(), 2u);
  member.steps = {kCloses, kCloses};
  expect_failure(call("third"), ErrorKind::kConnection);
  EXPECT_EQ(member.accepted(), 3u);
}

TEST_F(EtcdClientTest, ARequestThatIsNotRepeatableIsNotRepeated) {
  PlayedMember& member = add_member();
  expect_answer(call("first"), "first");
  member.steps = {kCloses};
  expect_failure(call("second", /*is_repeatable=*/false), ErrorKind::kConnection);
  EXPECT_EQ(member.requests.size(), 2u);
}

TEST_F(EtcdClientTest, AnAnswerThatEndsInItsMiddleIsAFailure) {
  PlayedMember& member = add_member();
  expect_answer(call("first"), "first");
  const std::string whole = answer_of("second");
  for (const std::size_t size : {whole.size() - 1, std::size_t{20}, std::size_t{1}}) {
    member.steps = {{whole.substr(0, size), /*closes=*/true}};
    const std::size_t asked = member.requests.size();
    expect_failure(call("second"), ErrorKind::kConnection);
    EXPECT_EQ(member.requests.size(), asked + 1);
    expect_answer(call("third"), "third");
  }
}

TEST_F(EtcdClientTest, BytesThatWereNotAskedForEndTheConnection) {
  PlayedMember& member = add_member();
  expect_answer(call("first"), "first");
  member.send(answer_of("forged"));
  ASSERT_TRUE(eventually_on(io_, [&] { return member.open() == 0; }));
  expect_answer(call("second"), "second");
  member.steps = {{answer_of("third") + answer_of("forged")}};
  expect_answer(call("third"), "third");
  expect_answer(call("fourth"), "fourth");
  EXPECT_EQ(member.accepted(), 3u);
}

TEST_F(EtcdClientTest, AnAnswerThatIsNotHttpIsAFailure) {
  PlayedMember& member = add_member();
  for (const char* bytes : {"SSH-2.0-x\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n"}) {
    member.steps = {{bytes}};
    expect_failure(call("first"), ErrorKind::kProtocol);
  }
  expect_answer(call("second"), "second");
}

TEST_F(EtcdClientTest, AMemberThatNeverAnswersIsGivenUp) {
  PlayedMember& member = add_member();
  member.steps = {kSilent};
  expect_failure(call("first", /*is_repeatable=*/false, 200ms), ErrorKind::kTimeout);
  EXPECT_EQ(member.requests.size(), 1u);
  EXPECT_TRUE(eventually_on(io_, [&] { return member.open() == 0; }));
}

TEST_F(EtcdClientTest, AnAnswerAfterTheLimitIsNotThatOfTheNextCall) {
  PlayedMember& member = add_member();
  expect_answer(call("first"), "first");
  member.steps = {kSilent};
  expect_failure(call("second", /*is_repeatable=*/false, 200ms), ErrorKind::kTimeout);
  member.send(answer_of("second"));
  expect_answer(call("third"), "third");
}

TEST_F(EtcdClientTest, TheNextMemberIsAskedWhileOneIsSilent) {
  PlayedMember& silent = add_member();
  PlayedMember& other = add_member();
  silent.steps = {kSilent};
  const TimePoint begun = BootClock::now();
  expect_answer(call("first", true, 4s), "first");
  EXPECT_LT(BootClock::now() - begun, 4s);
  EXPECT_EQ(silent.requests.size(), 1u);
  EXPECT_EQ(other.requests.size(), 1u);
  // Later requests go to the member that has answered.
  expect_answer(call("second"), "second");
  EXPECT_EQ(silent.requests.size(), 1u);
  EXPECT_TRUE(eventually_on(io_, [&] { return silent.open() == 0; }));
}

TEST_F(EtcdClientTest, ASilentMemberThatAnswersFirstEndsTheOtherTries) {
  PlayedMember& slow = add_member();
  PlayedMember& silent = add_member();
  slow.steps = {kSilent};
  silent.steps = {kSilent};
  const std::size_t first = begin("first", true, 4s);
  ASSERT_TRUE(eventually_on(io_, [&] { return silent.requests.size() == 1; }));
  slow.send(answer_of("first"));
  expect_answer(end(first), "first");
  EXPECT_TRUE(eventually_on(io_, [&] { return silent.open() == 0; }));
}

// A lease that is granted twice would stay.
TEST_F(EtcdClientTest, ARequestThatIsNotRepeatableGoesToOneMember) {
  PlayedMember& silent = add_member();
  PlayedMember& other = add_member();
  silent.steps = {kSilent};
  expect_failure(call("first", /*is_repeatable=*/false, 200ms), ErrorKind::kTimeout);
  EXPECT_EQ(other.requests.size(), 0u);
  expect_answer(call("second", /*is_repeatable=*/false), "second");
  EXPECT_EQ(other.requests.size(), 1u);
}

// A long answer is not asked for again while it comes.
TEST_F(EtcdClientTest, TheNextMemberIsNotAskedWhileAnAnswerComes) {
  PlayedMember& slow = add_member();
  PlayedMember& other = add_member();
  expect_answer(call("connects"), "connects");
  slow.steps = {{answer_of("first").substr(0, 10)}};
  expect_failure(call("first", true, 2s), ErrorKind::kTimeout);
  EXPECT_EQ(other.requests.size(), 0u);
}

TEST_F(EtcdClientTest, AMemberThatIsLostWhileAnotherOneIsAskedEndsNothing) {
  PlayedMember& lost = add_member();
  PlayedMember& other = add_member();
  lost.steps = {kSilent};
  other.steps = {kSilent};
  const std::size_t first = begin("first", true, 4s);
  ASSERT_TRUE(eventually_on(io_, [&] { return other.requests.size() == 1; }));
  lost.close_newest();
  io_.run_for(50ms);
  EXPECT_FALSE(results_[first]);
  other.send(answer_of("first"));
  expect_answer(end(first), "first");
}

TEST_F(EtcdClientTest, TheOnlyMemberIsNotAskedAgainWhileItIsSilent) {
  PlayedMember& member = add_member();
  member.steps = {kSilent};
  expect_failure(call("first", true, 400ms), ErrorKind::kTimeout);
  EXPECT_EQ(member.requests.size(), 1u);
}

TEST_F(EtcdClientTest, NothingIsCalledAfterTheDestructor) {
  PlayedMember& member = add_member();
  member.steps = {kSilent};
  begin("first");
  ASSERT_TRUE(eventually_on(io_, [&] { return member.requests.size() == 1; }));
  client_.reset();
  EXPECT_TRUE(eventually_on(io_, [&] { return member.open() == 0; }));
  EXPECT_FALSE(results_[0]);
}

TEST_F(EtcdClientTest, CallsShareAConnectionInTlsUntilTheContextIsRenewed) {
  const testing_support::TemporaryDirectory directory;
  const testing_support::Authority authority(directory.path(), "ours");
  const testing_support::IssuedFiles files = authority.issue("service");
  const auto agent = [&] {
    return TlsContext::for_agent({.cert = "", .key = "", .ca = authority.ca_file()})->context;
  };
  PlayedMember& member = add_member(
      TlsContext::for_service({.cert = files.cert, .key = files.key, .ca = ""})->context);
  options_.tls = agent();
  for (const char* body : {"one", "two", "three"}) expect_answer(call(body), body);
  EXPECT_EQ(member.accepted(), 1u);
  member.steps = {kCloses};
  expect_answer(call("four"), "four");
  EXPECT_EQ(member.accepted(), 2u);

  member.steps = {kSilent};
  const std::size_t before = begin("before", /*is_repeatable=*/false);
  ASSERT_TRUE(eventually_on(io_, [&] { return member.requests.back() == "before"; }));
  client().set_tls(agent());
  member.send(answer_of("before"));
  expect_answer(end(before), "before");
  expect_answer(call("after"), "after");
  EXPECT_EQ(member.accepted(), 3u);
}

}  // namespace
}  // namespace ddprun
