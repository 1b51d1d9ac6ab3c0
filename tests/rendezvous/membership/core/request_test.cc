// Tests the requests of users for a running job: Membership::request(), and how JobTable
// forwards them.
#include <gmock/gmock.h>

#include "base/exit_codes.h"
#include "rendezvous/membership/core/job_table.h"
#include "tests/rendezvous/membership/core/fixture.h"
#include "tests/support/hello_of.h"

namespace ddprun {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using What = UserRequest::What;
using std::chrono::seconds;

class MembershipRequestTest : public testing_support::MembershipFixture {
 protected:
  UserRequest request(What what) const { return {.what = what, .number = 7, .by = "ada on node0"}; }
  Answer ask(const UserRequest& request) {
    MembershipOutput out = job_->request(request, now_);
    Answer answer = out.answer.value();
    EXPECT_EQ(answer.number, request.number);
    passed_on_ = out.pass_ons;
    take(std::move(out));
    return answer;
  }
  void two_run() {
    start({2, 2}, 3);
    join("node0", 2);
    join("node1", 2);
    say("node0", AgentPhase::kRunning, 0);
    say("node1", AgentPhase::kRunning, 0);
  }
  std::vector<ToAgent> passed_on_;
};

TEST_F(MembershipRequestTest, ARestartIsANewGenerationAndUsesNoBudget) {
  two_run();
  const Answer answer = ask(request(What::kRestart));
  EXPECT_TRUE(answer.done) << answer.text;
  ASSERT_TRUE(received<Stop>("node0") && received<Stop>("node1"));
  EXPECT_EQ(received<Stop>("node0")->reason, "restart asked for by ada on node0");
  EXPECT_FALSE(received<Stop>("node0")->at_once);
  // Worker ends after a requested stop are victims.
  WorkerEnd end = killed(0);
  end.after_stop = true;
  say("node0", AgentPhase::kIdle, 0, {end});
  say("node1", AgentPhase::kIdle, 0);
  ASSERT_TRUE(received<Assignment>("node0"));
  EXPECT_EQ(received<Assignment>("node0")->generation, Generation(1));
  EXPECT_EQ(received<Assignment>("node0")->restart_count, 0);
  EXPECT_EQ(job_->restarts_used(), 0);
  EXPECT_THAT(job_->failed_generations(), IsEmpty());
}

TEST_F(MembershipRequestTest, ARestartIsRefusedWhereNoGenerationRuns) {
  start({2, 2});
  join("node0");
  const Answer early = ask(request(What::kRestart));
  EXPECT_FALSE(early.done);
  EXPECT_THAT(early.text, HasSubstr("1 of 2 nodes here"));
  join("node1");
  EXPECT_TRUE(ask(request(What::kRestart)).done);
  EXPECT_FALSE(ask(request(What::kRestart)).done) << "it is being formed already";
}

TEST_F(MembershipRequestTest, AStopEndsAnElasticJobOnAllNodes) {
  start({1, 2});
  join("node0");
  join("node1");
  say("node0", AgentPhase::kRunning, 0);
  say("node1", AgentPhase::kRunning, 0);
  EXPECT_TRUE(ask(request(What::kStop)).done);
  ASSERT_TRUE(received<Stop>("node0") && received<Stop>("node1"));
  say("node0", AgentPhase::kIdle, 0);
  EXPECT_FALSE(received<End>("node0")) << "node1 still ends its workers";
  say("node1", AgentPhase::kIdle, 0);
  ASSERT_TRUE(received<End>("node0") && received<End>("node1"));
  EXPECT_EQ(received<End>("node0")->verdict.exit_code, exit_code_of_signal(SIGTERM));
  EXPECT_EQ(received<End>("node0")->verdict.headline,
            "the job was stopped: ada on node0 asked for it");
  const Answer late = ask(request(What::kStop));
  EXPECT_FALSE(late.done);
  EXPECT_THAT(late.text, HasSubstr("has ended"));
}

TEST_F(MembershipRequestTest, ASecondStopMayTakeTheGraceAway) {
  two_run();
  ask(request(What::kStop));
  received_.clear();
  UserRequest now = request(What::kStop);
  now.at_once = true;
  EXPECT_TRUE(ask(now).done);
  ASSERT_TRUE(received<Stop>("node0") && received<Stop>("node1"));
  EXPECT_TRUE(received<Stop>("node0")->at_once);
}

TEST_F(MembershipRequestTest, AStopWhileNodesAreAwaitedEndsTheJobAtOnce) {
  start({2, 2});
  join("node0");
  EXPECT_TRUE(ask(request(What::kStop)).done);
  ASSERT_TRUE(received<End>("node0"));
  EXPECT_EQ(received<End>("node0")->verdict.exit_code, exit_code_of_signal(SIGTERM));
}

TEST_F(MembershipRequestTest, ASignalGoesToAllNodesOrToTheOneOfTheRank) {
  two_run();
  UserRequest signal = request(What::kSignal);
  signal.signal = SIGUSR1;
  Answer answer = ask(signal);
  EXPECT_EQ(answer.text, "sending SIGUSR1 to 4 workers on 2 nodes");
  EXPECT_EQ(passed_on_.size(), 2u);
  signal.rank = Rank(3);
  answer = ask(signal);
  EXPECT_EQ(answer.text, "sending SIGUSR1 to 1 worker on 1 node");
  ASSERT_EQ(passed_on_.size(), 1u);
  EXPECT_EQ(passed_on_[0].agent_id, "id-node1");
  EXPECT_EQ(std::get<ForwardSignal>(passed_on_[0].message),
            (ForwardSignal{Generation(0), SIGUSR1, Rank(3)}));
  signal.rank = Rank(4);
  answer = ask(signal);
  EXPECT_FALSE(answer.done);
  EXPECT_EQ(answer.text, "--rank: invalid value '4' (expected 0 to 3)");
}

TEST_F(MembershipRequestTest, OneWorkerHasOneRank) {
  start({1, 1});
  join("node0", 1);
  say("node0", AgentPhase::kRunning, 0);
  UserRequest signal = request(What::kSignal);
  signal.signal = SIGUSR1;
  signal.rank = Rank(7);
  EXPECT_EQ(ask(signal).text, "--rank: invalid value '7' (expected 0)");
}

TEST_F(MembershipRequestTest, NobodyIsSignalledWhereANodeCannotBeReached) {
  two_run();
  job_->disconnected("id-node1");
  UserRequest signal = request(What::kSignal);
  signal.signal = SIGUSR1;
  EXPECT_FALSE(ask(signal).done);
  EXPECT_THAT(passed_on_, IsEmpty());
}

// A spare leaves before the end of its time only if there is nothing to wait for.
TEST_F(MembershipRequestTest, SaysThatThereAreNoWorkersOnlyIfNoneCanBeStarted) {
  UserRequest signal = request(What::kSignal);
  signal.signal = SIGUSR1;
  two_run();
  EXPECT_FALSE(ask(signal).no_workers);
  job_->disconnected("id-node1");
  EXPECT_FALSE(ask(signal).no_workers) << "its workers run";
  fail({"node0"}, "node0");
  EXPECT_FALSE(ask(signal).no_workers) << "node1 may still have some";

  start({2, 2});
  join("node0");
  EXPECT_TRUE(ask(signal).no_workers);
  EXPECT_FALSE(ask(signal).done);
  start({1, 2});
  join("node0");
  EXPECT_FALSE(ask(signal).no_workers) << "the last call runs";
}

TEST_F(MembershipRequestTest, AFailedGenerationIsRemembered) {
  two_run();
  fail({"node0", "node1"}, "node1");
  ASSERT_EQ(job_->failed_generations().size(), 1u);
  const Verdict& verdict = job_->failed_generations()[0].verdict;
  EXPECT_EQ(verdict.generation, Generation(0));
  ASSERT_FALSE(verdict.ends.empty());
  EXPECT_EQ(verdict.ends[0].host, "node1");
}

TEST_F(MembershipRequestTest, OfFailedGenerationsAnExcerptIsKept) {
  constexpr int kNodes = 20;
  std::vector<std::string> hosts;
  start({kNodes, kNodes}, 5);
  for (int i = 0; i < kNodes; ++i) hosts.push_back("node" + std::to_string(i));
  for (const std::string& host : hosts) join(host);
  for (int generation = 0; generation < 2; ++generation) {
    for (const std::string& host : hosts) say(host, AgentPhase::kRunning, generation);
    live(std::chrono::minutes(1));
    for (int i = 0; i < kNodes; ++i) {
      WorkerEnd end = killed(i, std::chrono::milliseconds(100));
      end.node_rank = NodeRank(i);
      end.stderr_tail = {"last words"};
      say(hosts[static_cast<std::size_t>(i)], AgentPhase::kIdle, generation, {end});
    }
  }
  ASSERT_EQ(job_->failed_generations().size(), 2u);
  const Verdict& older = job_->failed_generations()[0].verdict;
  const Verdict& newest = job_->failed_generations()[1].verdict;
  EXPECT_EQ(older.ends.size(), Membership::kEndsOfOlder);
  EXPECT_EQ(older.more_ends, kNodes - static_cast<int>(Membership::kEndsOfOlder));
  EXPECT_TRUE(older.ends[0].stderr_tail.empty());
  EXPECT_EQ(newest.ends.size(), Membership::kEndsOfNewest);
  EXPECT_EQ(newest.more_ends, kNodes - static_cast<int>(Membership::kEndsOfNewest));
  EXPECT_EQ(newest.ends[0].stderr_tail.size(), 1u);
  EXPECT_TRUE(newest.ends[1].stderr_tail.empty());
}

// --- requests through the table ---

class RequestTableTest : public testing::Test {
 protected:
  ServiceOutput receive(std::uint64_t connection, const AgentMessage& message,
                        std::optional<UserId> user = {}) {
    return table_.receive({.connection = AgentConnectionId(connection), .user = user}, message,
                          now_);
  }
  template <class T>
  static std::vector<ServiceOutput::Send> sends(const ServiceOutput& out,
                                                std::uint64_t connection) {
    std::vector<ServiceOutput::Send> found;
    for (const ServiceOutput::Send& send : out.sends) {
      if (send.connection.value == connection && std::holds_alternative<T>(send.message)) {
        found.push_back(send);
      }
    }
    return found;
  }
  static UserRequest request(What what, const std::string& job) {
    return {.what = what, .number = 1, .job = job, .by = "ada on node0"};
  }

  TimePoint now_ = TimePoint(seconds(1000));
  JobTable table_{ServiceOptions{}};
};

TEST_F(RequestTableTest, ARequestsConnectionEndsWithItsAnswer) {
  receive(1, testing_support::hello_of("j", "a"));
  const ServiceOutput out = receive(2, request(What::kRestart, "j"));
  ASSERT_EQ(sends<Answer>(out, 2).size(), 1u);
  EXPECT_TRUE(std::get<Answer>(sends<Answer>(out, 2)[0].message).done);
  EXPECT_TRUE(sends<Answer>(out, 2)[0].last);
  EXPECT_EQ(sends<Stop>(out, 1).size(), 1u);
}

TEST_F(RequestTableTest, AConnectionThatStopsAJobHearsOfItsEnd) {
  receive(1, testing_support::hello_of("j", "a"));
  receive(1, AgentStatus{.phase = AgentPhase::kRunning, .generation = Generation(0)});
  ServiceOutput out = receive(2, request(What::kStop, "j"));
  ASSERT_EQ(sends<Answer>(out, 2).size(), 1u);
  EXPECT_FALSE(sends<Answer>(out, 2)[0].last);
  out = receive(1, AgentStatus{.phase = AgentPhase::kIdle, .generation = Generation(0)});
  ASSERT_EQ(sends<End>(out, 2).size(), 1u);
  EXPECT_TRUE(sends<End>(out, 2)[0].last);
}

TEST_F(RequestTableTest, WhoHasGoneHearsOfNothing) {
  receive(1, testing_support::hello_of("j", "a"));
  receive(1, AgentStatus{.phase = AgentPhase::kRunning, .generation = Generation(0)});
  receive(2, request(What::kStop, "j"));
  table_.disconnected(AgentConnectionId(2), now_);
  const ServiceOutput out =
      receive(1, AgentStatus{.phase = AgentPhase::kIdle, .generation = Generation(0)});
  EXPECT_TRUE(sends<End>(out, 2).empty());
}

TEST_F(RequestTableTest, AnUnknownJobIsNamed) {
  const ServiceOutput out = receive(2, request(What::kRestart, "j"));
  ASSERT_EQ(sends<Answer>(out, 2).size(), 1u);
  EXPECT_EQ(std::get<Answer>(sends<Answer>(out, 2)[0].message).text, "this service has no job 'j'");
}

TEST_F(RequestTableTest, AJobOfAnotherUserIsNotHis) {
  constexpr UserId kOwner{1000};
  constexpr UserId kOther{1001};
  receive(1, testing_support::hello_of("j", "a"), kOwner);
  for (const What what : {What::kStop, What::kRestart, What::kSignal, What::kLogs, What::kFlight}) {
    UserRequest asked = request(what, "j");
    asked.signal = SIGUSR1;
    const ServiceOutput out = receive(2, asked, kOther);
    ASSERT_EQ(sends<Answer>(out, 2).size(), 1u);
    EXPECT_FALSE(std::get<Answer>(sends<Answer>(out, 2)[0].message).done);
    EXPECT_THAT(std::get<Answer>(sends<Answer>(out, 2)[0].message).text,
                HasSubstr("belongs to user 1000"));
    EXPECT_TRUE(sends<Stop>(out, 1).empty());
  }
  EXPECT_TRUE(std::get<Answer>(
                  sends<Answer>(receive(2, request(What::kRestart, "j"), UserId{0}), 2)[0].message)
                  .done)
      << "root may";
}

TEST_F(RequestTableTest, AnAgentAsksForItsOwnJobAlone) {
  receive(1, testing_support::hello_of("j", "a"));
  receive(2, testing_support::hello_of("other", "b"));
  const ServiceOutput out = receive(1, request(What::kRestart, "other"));
  EXPECT_EQ(sends<Stop>(out, 1).size(), 1u);
  EXPECT_TRUE(sends<Stop>(out, 2).empty());
  ASSERT_EQ(sends<Answer>(out, 1).size(), 1u);
  EXPECT_FALSE(sends<Answer>(out, 1)[0].last) << "its connection stays";
}

// --- output of workers ---

class OutputRequestTest : public RequestTableTest {
 protected:
  void two_run() {
    for (const std::uint64_t connection : {1, 2}) {
      Hello hello = testing_support::hello_of("j", "n" + std::to_string(connection), {2, 2});
      hello.node.supports_output = true;
      receive(connection, hello);
    }
    for (const std::uint64_t connection : {1, 2}) {
      receive(connection, AgentStatus{.phase = AgentPhase::kRunning, .generation = Generation(0)});
    }
  }
  static UserRequest logs(bool follow = false, std::optional<Rank> rank = {}) {
    UserRequest asked = request(What::kLogs, "j");
    asked.follow = follow;
    asked.rank = rank;
    return asked;
  }
  static Answer answer(const ServiceOutput& out, std::uint64_t connection) {
    const auto all = sends<Answer>(out, connection);
    EXPECT_EQ(all.size(), 1u);
    return all.empty() ? Answer() : std::get<Answer>(all[0].message);
  }
};

TEST_F(OutputRequestTest, GoesToTheNodesOfTheJobAndTheirPagesToTheReader) {
  two_run();
  ServiceOutput out = receive(9, logs());
  EXPECT_TRUE(answer(out, 9).done && answer(out, 9).more);
  ASSERT_EQ(sends<OutputDirective>(out, 1).size(), 1u);
  ASSERT_EQ(sends<OutputDirective>(out, 2).size(), 1u);
  const auto asked = std::get<OutputDirective>(sends<OutputDirective>(out, 2)[0].message);
  EXPECT_EQ(asked.lines, kDefaultLogLines);
  receive(1, OutputPage{.inquiry = asked.inquiry, .is_last = true});
  out = receive(2, OutputPage{.inquiry = asked.inquiry, .is_ready = true});
  EXPECT_EQ(sends<OutputDirective>(out, 2).size(), 1u);
  out = receive(2, OutputPage{.inquiry = asked.inquiry, .lines = "{}\n", .is_last = true});
  ASSERT_EQ(sends<Answer>(out, 9).size(), 2u);
  EXPECT_EQ(std::get<Answer>(sends<Answer>(out, 9)[0].message).page, "{}\n");
  EXPECT_TRUE(sends<Answer>(out, 9)[1].last);
}

TEST_F(OutputRequestTest, OfARankGoesToItsNodeAlone) {
  two_run();
  const ServiceOutput out = receive(9, logs(false, Rank(1)));
  EXPECT_EQ(sends<OutputDirective>(out, 1).size() + sends<OutputDirective>(out, 2).size(), 1u);
  const Answer refused = answer(receive(8, logs(false, Rank(2))), 8);
  EXPECT_FALSE(refused.done || refused.more);
  EXPECT_EQ(refused.text, "--rank: invalid value '2' (expected 0 to 1)");
}

TEST_F(OutputRequestTest, IsAskedForOnceOnAConnection) {
  two_run();
  receive(9, logs(true));
  const ServiceOutput second = receive(9, logs(true));
  EXPECT_FALSE(answer(second, 9).done);
  EXPECT_THAT(answer(second, 9).text, HasSubstr("already reads the output of workers"));
  ASSERT_EQ(sends<Answer>(second, 9).size(), 1u);
  EXPECT_TRUE(sends<Answer>(second, 9)[0].last) << "the first one ends with the connection";
  EXPECT_TRUE(sends<OutputDirective>(second, 1).empty());
  const ServiceOutput gone = table_.disconnected(AgentConnectionId(9), now_);
  EXPECT_EQ(sends<OutputDirective>(gone, 1).size(), 1u) << "the only one is ended";
  // Nothing of the inquiry is left, so its reader gets no more messages.
  receive(1, AgentStatus{.phase = AgentPhase::kFinished, .generation = Generation(0)});
  const ServiceOutput end =
      receive(2, AgentStatus{.phase = AgentPhase::kFinished, .generation = Generation(0)});
  EXPECT_EQ(sends<End>(end, 1).size(), 1u);
  EXPECT_TRUE(sends<End>(end, 9).empty());
}

TEST_F(OutputRequestTest, FollowsIntoTheNextGenerationAndToTheEnd) {
  two_run();
  ServiceOutput out = receive(9, logs(true));
  const auto asked = std::get<OutputDirective>(sends<OutputDirective>(out, 1)[0].message);
  receive(1, OutputPage{.inquiry = asked.inquiry});
  receive(2, OutputPage{.inquiry = asked.inquiry});
  // The second node is lost, and another one takes its place.
  out = receive(
      2, AgentStatus{.phase = AgentPhase::kRunning, .generation = Generation(0), .leaving = 0});
  out = table_.disconnected(AgentConnectionId(2), now_);
  EXPECT_THAT(answer(out, 9).text, HasSubstr("connection with n2 is lost"));
  Hello hello = testing_support::hello_of("j", "n2", {2, 2});
  hello.node.supports_output = true;
  hello.status = {.phase = AgentPhase::kRunning, .generation = Generation(0)};
  out = receive(3, hello);
  ASSERT_EQ(sends<OutputDirective>(out, 3).size(), 1u) << "it is asked again";
  receive(3, OutputPage{.inquiry = asked.inquiry});
  for (const std::uint64_t connection : {1, 3}) {
    out = receive(connection,
                  AgentStatus{.phase = AgentPhase::kFinished, .generation = Generation(0)});
  }
  EXPECT_EQ(sends<End>(out, 9).size(), 0u) << "what they have written last is still to come";
  receive(1, OutputPage{.inquiry = asked.inquiry, .is_last = true});
  out = receive(3, OutputPage{.inquiry = asked.inquiry, .is_last = true});
  ASSERT_EQ(sends<End>(out, 9).size(), 1u);
  EXPECT_TRUE(sends<End>(out, 9)[0].last);
  EXPECT_FALSE(answer(receive(8, logs()), 8).done) << "the job has ended";
}

TEST_F(OutputRequestTest, WhoHasGoneIsForgottenByTheAgentsToo) {
  two_run();
  receive(9, logs(true));
  ASSERT_TRUE(table_.is_reader(AgentConnectionId(9)));
  const ServiceOutput out = table_.disconnected(AgentConnectionId(9), now_);
  ASSERT_EQ(sends<OutputDirective>(out, 1).size(), 1u);
  EXPECT_EQ(std::get<OutputDirective>(sends<OutputDirective>(out, 1)[0].message).what,
            OutputDirective::What::kEnd);
  EXPECT_FALSE(table_.is_reader(AgentConnectionId(9)));
}

TEST_F(OutputRequestTest, HasALimitedNumberOfReadersPerJob) {
  two_run();
  EXPECT_FALSE(answer(receive(1, logs()), 1).done);
  for (std::uint64_t i = 0; i < OutputInquiries::kOfJob; ++i) receive(100 + i, logs(true));
  EXPECT_THAT(answer(receive(9, logs(true)), 9).text, HasSubstr("too many"));
}

TEST_F(OutputRequestTest, ATimeIsSetForTheAnswer) {
  two_run();
  receive(9, logs());
  ASSERT_TRUE(table_.deadline());
  EXPECT_LE(*table_.deadline(), now_ + OutputInquiries::kAgentPatience);
  now_ += OutputInquiries::kAgentPatience;
  const auto answers = sends<Answer>(table_.tick(now_), 9);
  ASSERT_EQ(answers.size(), 2u);
  EXPECT_THAT(std::get<Answer>(answers[0].message).text, HasSubstr("from n1, n2"));
  EXPECT_TRUE(answers[1].last);
}

TEST_F(OutputRequestTest, AServiceThatEndsTellsItsReaders) {
  two_run();
  receive(9, logs(true));
  EXPECT_EQ(sends<Silence>(table_.farewell("the service is stopping"), 9).size(), 1u);
}

TEST_F(RequestTableTest, StatusIsAPageOfTheJobOrOfAll) {
  receive(1, testing_support::hello_of("j", "a"));
  ServiceOutput out = receive(2, request(What::kStatus, "j"));
  ASSERT_EQ(out.pages.size(), 1u);
  EXPECT_EQ(out.pages[0].job, "j");
  EXPECT_TRUE(out.pages[0].last);
  out = receive(3, request(What::kStatus, ""));
  ASSERT_EQ(out.pages.size(), 1u);
  EXPECT_EQ(out.pages[0].job, "");
}

}  // namespace
}  // namespace ddprun
