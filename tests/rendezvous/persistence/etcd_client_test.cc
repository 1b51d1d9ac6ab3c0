// Tests EtcdClient with played members. etcd_state_test has a real etcd.
#include "rendezvous/persistence/etcd_client.h"

#include <gtest/gtest.h>

#include <deque>
#include <memory>
#include <optional>

#include "tests/support/certificates.h"
#include "tests/support/eventually.h"
#include "tests/support/played_etcd_member.h"
#include "tests/support/temporary_directory.h"

namespace ddprun {
namespace {

using testing_support::eventually_on;
using testing_support::http_answer;
using testing_support::PlayedEtcdMember;
using namespace std::chrono_literals;

using Step = PlayedEtcdMember::Step;

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
  PlayedEtcdMember& add_member(TlsContextPtr tls = nullptr) {
    members_.push_back(std::make_unique<PlayedEtcdMember>(io_, std::move(tls)));
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
  std::vector<std::unique_ptr<PlayedEtcdMember>> members_;
  EtcdClientOptions options_;
  std::deque<std::optional<Result<std::string>>> results_;
  std::optional<EtcdClient> client_;
};

TEST_F(EtcdClientTest, CallsShareAConnection) {
  PlayedEtcdMember& member = add_member();
  for (const char* body : {"one", "two", "three"}) expect_answer(call(body), body);
  EXPECT_EQ(member.accepted(), 1u);
}

TEST_F(EtcdClientTest, CallsAtTheSameTimeHaveConnectionsOfTheirOwnAndOneIsKept) {
  PlayedEtcdMember& member = add_member();
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
  PlayedEtcdMember& member = add_member();
  expect_answer(call("first"), "first");
  EXPECT_TRUE(eventually_on(io_, [&] { return member.open() == 0; }));
  expect_answer(call("second"), "second");
}

TEST_F(EtcdClientTest, AMemberThatClosesAfterEachAnswerHarmsNothing) {
  PlayedEtcdMember& member = add_member();
  for (const char* body : {"one", "two", "three"}) {
    member.steps = {{http_answer(body), /*closes=*/true}};
    expect_answer(call(body), body);
    ASSERT_TRUE(eventually_on(io_, [&] { return member.open() == 0; }));
  }
  EXPECT_EQ(member.requests.size(), 3u);
}

TEST_F(EtcdClientTest, AMemberThatAnnouncesToCloseIsNotAskedOnThatConnection) {
  PlayedEtcdMember& member = add_member();
  member.steps = {{http_answer("one", "Connection: close\r\n")}};
  expect_answer(call("one"), "one");
  expect_answer(call("two", /*is_repeatable=*/false), "two");
  EXPECT_EQ(member.accepted(), 2u);
}

// The member closes while the request is on its way.
TEST_F(EtcdClientTest, ARequestOnAConnectionThatHasClosedIsRepeatedOnce) {
  PlayedEtcdMember& member = add_member();
  expect_answer(call("first"), "first");
  member.steps = {kCloses};
  expect_answer(call("second"), "second");
  EXPECT_EQ(member.accepted(), 2u);
  member.steps = {kCloses, kCloses};
  expect_failure(call("third"), ErrorKind::kConnection);
  EXPECT_EQ(member.accepted(), 3u);
}

TEST_F(EtcdClientTest, ARequestThatIsNotRepeatableIsNotRepeated) {
  PlayedEtcdMember& member = add_member();
  expect_answer(call("first"), "first");
  member.steps = {kCloses};
  expect_failure(call("second", /*is_repeatable=*/false), ErrorKind::kConnection);
  EXPECT_EQ(member.requests.size(), 2u);
}

TEST_F(EtcdClientTest, AnAnswerThatEndsInItsMiddleIsAFailure) {
  PlayedEtcdMember& member = add_member();
  expect_answer(call("first"), "first");
  const std::string whole = http_answer("second");
  for (const std::size_t size : {whole.size() - 1, std::size_t{20}, std::size_t{1}}) {
    member.steps = {{whole.substr(0, size), /*closes=*/true}};
    const std::size_t asked = member.requests.size();
    expect_failure(call("second"), ErrorKind::kConnection);
    EXPECT_EQ(member.requests.size(), asked + 1);
    expect_answer(call("third"), "third");
  }
}

TEST_F(EtcdClientTest, BytesThatWereNotAskedForEndTheConnection) {
  PlayedEtcdMember& member = add_member();
  expect_answer(call("first"), "first");
  member.send(http_answer("forged"));
  ASSERT_TRUE(eventually_on(io_, [&] { return member.open() == 0; }));
  expect_answer(call("second"), "second");
  member.steps = {{http_answer("third") + http_answer("forged")}};
  expect_answer(call("third"), "third");
  expect_answer(call("fourth"), "fourth");
  EXPECT_EQ(member.accepted(), 3u);
}

TEST_F(EtcdClientTest, AnAnswerThatIsNotHttpIsAFailure) {
  PlayedEtcdMember& member = add_member();
  for (const char* bytes : {"SSH-2.0-x\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n"}) {
    member.steps = {{bytes}};
    expect_failure(call("first"), ErrorKind::kProtocol);
  }
  expect_answer(call("second"), "second");
}

TEST_F(EtcdClientTest, AMemberThatNeverAnswersIsGivenUp) {
  PlayedEtcdMember& member = add_member();
  member.steps = {kSilent};
  expect_failure(call("first", /*is_repeatable=*/false, 200ms), ErrorKind::kTimeout);
  EXPECT_EQ(member.requests.size(), 1u);
  EXPECT_TRUE(eventually_on(io_, [&] { return member.open() == 0; }));
}

TEST_F(EtcdClientTest, AnAnswerAfterTheLimitIsNotThatOfTheNextCall) {
  PlayedEtcdMember& member = add_member();
  expect_answer(call("first"), "first");
  member.steps = {kSilent};
  expect_failure(call("second", /*is_repeatable=*/false, 200ms), ErrorKind::kTimeout);
  member.send(http_answer("second"));
  expect_answer(call("third"), "third");
}

TEST_F(EtcdClientTest, TheNextMemberIsAskedWhileOneIsSilent) {
  PlayedEtcdMember& silent = add_member();
  PlayedEtcdMember& other = add_member();
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
  PlayedEtcdMember& slow = add_member();
  PlayedEtcdMember& silent = add_member();
  slow.steps = {kSilent};
  silent.steps = {kSilent};
  const std::size_t first = begin("first", true, 4s);
  ASSERT_TRUE(eventually_on(io_, [&] { return silent.requests.size() == 1; }));
  slow.send(http_answer("first"));
  expect_answer(end(first), "first");
  EXPECT_TRUE(eventually_on(io_, [&] { return silent.open() == 0; }));
}

// A lease that is granted twice would stay.
TEST_F(EtcdClientTest, ARequestThatIsNotRepeatableGoesToOneMember) {
  PlayedEtcdMember& silent = add_member();
  PlayedEtcdMember& other = add_member();
  silent.steps = {kSilent};
  expect_failure(call("first", /*is_repeatable=*/false, 200ms), ErrorKind::kTimeout);
  EXPECT_EQ(other.requests.size(), 0u);
  expect_answer(call("second", /*is_repeatable=*/false), "second");
  EXPECT_EQ(other.requests.size(), 1u);
}

// A long answer is not asked for again while it comes.
TEST_F(EtcdClientTest, TheNextMemberIsNotAskedWhileAnAnswerComes) {
  PlayedEtcdMember& slow = add_member();
  PlayedEtcdMember& other = add_member();
  expect_answer(call("connects"), "connects");
  slow.steps = {{http_answer("first").substr(0, 10)}};
  expect_failure(call("first", true, 2s), ErrorKind::kTimeout);
  EXPECT_EQ(other.requests.size(), 0u);
}

TEST_F(EtcdClientTest, AMemberThatIsLostWhileAnotherOneIsAskedEndsNothing) {
  PlayedEtcdMember& lost = add_member();
  PlayedEtcdMember& other = add_member();
  lost.steps = {kSilent};
  other.steps = {kSilent};
  const std::size_t first = begin("first", true, 4s);
  ASSERT_TRUE(eventually_on(io_, [&] { return other.requests.size() == 1; }));
  lost.close_newest();
  io_.run_for(50ms);
  EXPECT_FALSE(results_[first]);
  other.send(http_answer("first"));
  expect_answer(end(first), "first");
}

TEST_F(EtcdClientTest, TheOnlyMemberIsNotAskedAgainWhileItIsSilent) {
  PlayedEtcdMember& member = add_member();
  member.steps = {kSilent};
  expect_failure(call("first", true, 400ms), ErrorKind::kTimeout);
  EXPECT_EQ(member.requests.size(), 1u);
}

TEST_F(EtcdClientTest, NothingIsCalledAfterTheDestructor) {
  PlayedEtcdMember& member = add_member();
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
  PlayedEtcdMember& member = add_member(
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
  member.send(http_answer("before"));
  expect_answer(end(before), "before");
  expect_answer(call("after"), "after");
  EXPECT_EQ(member.accepted(), 3u);
}

}  // namespace
}  // namespace ddprun
