// Tests what each member is told (rendezvous/membership/core/directives.cc).
#include "tests/rendezvous/membership/core/fixture.h"

namespace ddprun {
namespace {

using testing::HasSubstr;

using MembershipDirectivesTest = testing_support::MembershipFixture;
using std::chrono::seconds;

// --- the peers that may connect to the store's host ---

class PeersTest : public MembershipDirectivesTest {
 protected:
  void join_from(const std::string& host, const std::string& address,
                 std::vector<std::string> others = {}) {
    Hello one = hello(host);
    one.node.address = address;
    one.node.other_addresses = std::move(others);
    take(job_->joined(one, false, now_));
  }
};

TEST_F(PeersTest, TheStoresHostAloneIsToldTheAddressesOfAllInTheGeneration) {
  start({2, 2});
  join_from("node0", "10.0.0.1", {"10.1.0.1"});
  join_from("node1", "10.0.0.2", {"10.1.0.2", "fd00::2"});
  join_from("node2", "10.0.0.3");
  ASSERT_TRUE(received<Assignment>("node0") && received<Assignment>("node1") &&
              received<Wait>("node2"));
  EXPECT_THAT(
      received<Assignment>("node0")->peers,
      testing::UnorderedElementsAre("10.0.0.1", "10.1.0.1", "10.0.0.2", "10.1.0.2", "fd00::2"));
  EXPECT_THAT(received<Assignment>("node1")->peers, testing::IsEmpty());
}

TEST_F(PeersTest, AreSaidAgainToAHostThatComesBackAndAreNoPartOfTheState) {
  start({2, 2});
  join_from("node0", "10.0.0.1", {"10.1.0.1"});
  join_from("node1", "10.0.0.2");
  for (const Place& place : job_->state(now_).places) {
    EXPECT_THAT(place.node.other_addresses, testing::IsEmpty());
    EXPECT_THAT(place.assignment.peers, testing::IsEmpty());
  }
  job_->disconnected("id-node0");
  received_.clear();
  join_from("node0", "10.0.0.1", {"10.1.0.1"});
  ASSERT_TRUE(received<Assignment>("node0"));
  EXPECT_EQ(received<Assignment>("node0")->peers.size(), 3u);
}

TEST_F(PeersTest, WhenNotAllFitEachNodeHasItsFirst) {
  constexpr int kNodes = 200;
  start({kNodes, kNodes});
  const std::string long_one(kMaxNameBytes, 'x');
  for (int i = 0; i < kNodes; ++i) {
    join_from("node" + std::to_string(i), "10.0.0." + std::to_string(i),
              std::vector<std::string>(kMaxAddresses, long_one));
  }
  const Assignment* host = received<Assignment>("node0");
  ASSERT_TRUE(host);
  std::size_t bytes = 0;
  for (const std::string& peer : host->peers) bytes += peer.size();
  EXPECT_LE(bytes, kMaxPeersBytes);
  for (int i = 0; i < kNodes; ++i) {
    EXPECT_THAT(host->peers, testing::Contains("10.0.0." + std::to_string(i)));
  }
}

TEST_F(MembershipDirectivesTest, TheStoresHostIsReachableFromOtherNodes) {
  start({2, 2});
  job_->set_service_address("10.0.0.9");
  job_->set_service_address("127.0.1.1");  // seen by an agent on the service's host
  Hello host = hello("a");
  host.node.address = "127.0.0.1";  // it reached the service through loopback
  take(job_->joined(host, true, now_));
  join("b");
  ASSERT_TRUE(received<Assignment>("b"));
  EXPECT_EQ(received<Assignment>("b")->store.host, "10.0.0.9");
}

// --- reports of failures, and reasons to wait ---

TEST_F(MembershipDirectivesTest, WhatFailedIsToldToTheFirstNodeAndToTheOneThatFailed) {
  start({3, 3}, 9);
  for (const char* host : {"a", "b", "c"}) join(host);
  EXPECT_FALSE(received<Assignment>("a")->failure);
  fail({"a", "b", "c"}, "c");
  ASSERT_TRUE(received<Assignment>("a"));
  ASSERT_TRUE(received<Assignment>("a")->failure);
  EXPECT_EQ(received<Assignment>("a")->failure->generation, Generation(0));
  EXPECT_EQ(received<Assignment>("a")->failure->ends.front().host, "c");
  EXPECT_EQ(received<Assignment>("c")->failure, received<Assignment>("a")->failure);
  EXPECT_FALSE(received<Assignment>("b")->failure) << "a thousand nodes need not all hear it";
  fail({"a", "b", "c"}, "b");
  EXPECT_EQ(received<Assignment>("b")->failure->ends.front().host, "b");
}

TEST_F(MembershipDirectivesTest, TooFewNodesEndTheJobAtTheJoinDeadlineAndItSaysWhoWasThere) {
  start({2, 2});
  beating_ = {"a"};
  join("a");
  pass(seconds(601));
  ASSERT_TRUE(received<End>("a"));
  EXPECT_EQ(received<End>("a")->verdict.exit_code, 65);
  EXPECT_THAT(received<End>("a")->verdict.headline, HasSubstr("1 of 2 nodes here: a"));
}

// --- who runs the commands of --on-end ---

class EndCommandsTest : public MembershipDirectivesTest {
 protected:
  void join_with_service(const std::string& host) { take(job_->joined(hello(host), true, now_)); }
  void leave(const std::string& host) {
    take(job_->left("id-" + host, {.signal = SIGTERM, .reason = ""}, now_));
  }
  // Returns the hosts that were told to run them.
  std::vector<std::string> chosen(const std::vector<std::string>& hosts) {
    std::vector<std::string> found;
    for (const std::string& host : hosts) {
      const End* const end = received<End>(host);
      if (end && end->runs_end_commands) found.push_back(host);
    }
    return found;
  }
};

TEST_F(EndCommandsTest, TheLowestRankThatIsLeftRunsThem) {
  start({1, 3});
  for (const char* host : {"a", "b", "c"}) join(host);
  for (const char* host : {"a", "b", "c"}) say(host, AgentPhase::kRunning, 0);
  ASSERT_EQ(received<Assignment>("a")->node_rank, NodeRank(0));
  leave("a");  // the job continues without its rank 0
  for (const char* host : {"b", "c"}) say(host, AgentPhase::kIdle, 0);
  ASSERT_TRUE(received<Assignment>("b") && received<Assignment>("c"));
  const char* const first = received<Assignment>("b")->node_rank == NodeRank(0) ? "b" : "c";
  for (const char* host : {"b", "c"}) say(host, AgentPhase::kFinished, 1);
  EXPECT_THAT(chosen({"b", "c"}), testing::ElementsAre(first));
  received_.clear();
  job_->disconnected(std::string("id-") + first);
  join(first);
  EXPECT_THAT(chosen({"b", "c"}), testing::ElementsAre(first)) << "is told it again";
}

TEST_F(EndCommandsTest, ASpareDoesNot) {
  start({1, 1}, 3);
  join("a");
  say("a", AgentPhase::kRunning, 0);
  join("0");  // its agent id is the lowest
  say("a", AgentPhase::kFinished, 0);
  EXPECT_THAT(chosen({"0", "a"}), testing::ElementsAre("a"));
}

TEST_F(EndCommandsTest, ANodeThatIsLeftRunsThemWhenTheOthersDoNotComeBack) {
  start({2, 2}, 1);
  join("a");
  join("b");
  say("a", AgentPhase::kRunning, 0);
  say("b", AgentPhase::kRunning, 0);
  const std::string lost = received<Assignment>("a")->node_rank == NodeRank(0) ? "a" : "b";
  const std::string left = lost == "a" ? "b" : "a";
  beating_ = {left};
  pass(seconds(6));
  ASSERT_TRUE(received<Stop>(left));
  say(left, AgentPhase::kIdle, 0);
  pass(seconds(601));
  ASSERT_TRUE(received<End>(left));
  EXPECT_EQ(received<End>(left)->verdict.cause, VerdictCause::kTooFewNodes);
  EXPECT_THAT(chosen({left}), testing::ElementsAre(left));
}

TEST_F(EndCommandsTest, ANodeThatLeavesBeforeTheVerdictDoesNot) {
  start({2, 2});
  join("a");
  join("b");
  say("a", AgentPhase::kRunning, 0);
  say("b", AgentPhase::kRunning, 0);
  const std::string leaving = received<Assignment>("a")->node_rank == NodeRank(0) ? "a" : "b";
  const std::string other = leaving == "a" ? "b" : "a";
  AgentStatus status{.phase = AgentPhase::kIdle, .generation = Generation(0), .leaving = SIGTERM};
  take(job_->status("id-" + leaving, status, now_));
  say(other, AgentPhase::kIdle, 0);
  ASSERT_TRUE(received<End>(other));
  EXPECT_THAT(chosen({"a", "b"}), testing::ElementsAre(other));
}

// It runs them without a verdict, too.
TEST_F(EndCommandsTest, NoOtherNodeDoesIfTheServiceRunsInOne) {
  start({2, 2});
  join("a");
  join_with_service("b");
  say("a", AgentPhase::kRunning, 0);
  say("b", AgentPhase::kRunning, 0);
  leave("b");
  say("a", AgentPhase::kIdle, 0);
  ASSERT_TRUE(received<End>("a"));
  EXPECT_THAT(chosen({"a"}), testing::IsEmpty());

  start({2, 2});
  received_.clear();
  join("a");
  join_with_service("b");
  say("a", AgentPhase::kFinished, 0);
  say("b", AgentPhase::kFinished, 0);
  EXPECT_THAT(chosen({"a", "b"}), testing::ElementsAre("b"));
}

}  // namespace
}  // namespace ddprun
