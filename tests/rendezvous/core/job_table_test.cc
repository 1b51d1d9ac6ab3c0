#include "rendezvous/core/job_table.h"

#include <gtest/gtest.h>

namespace ddprun {
namespace {

using std::chrono::seconds;

class JobTableTest : public testing::Test {
 protected:
  static Hello hello(const std::string& job, const std::string& agent) {
    Hello hello;
    hello.job.id = job;
    hello.node = {.agent_id = agent,
                  .host = "host-" + agent,
                  .slots = 1,
                  .node_rank = {},
                  .address = "10.0.0.1"};
    return hello;
  }
  ServiceOutput receive(AgentConnectionId connection, const AgentMessage& message) {
    return table_.receive({.connection = connection}, message, now_);
  }
  template <class T>
  static const T* find(const ServiceOutput& out, AgentConnectionId connection) {
    for (const ServiceOutput::Send& send : out.sends) {
      if (send.connection != connection) continue;
      if (const T* message = std::get_if<T>(&send.message)) return message;
    }
    return nullptr;
  }

  TimePoint now_ = TimePoint(seconds(1000));
  JobTable table_{ServiceOptions{}};
};

TEST_F(JobTableTest, WelcomesAnAgentBeforeItTellsItAnything) {
  const ServiceOutput out = receive(1, hello("j", "a"));
  ASSERT_EQ(out.sends.size(), 2u);
  EXPECT_TRUE(std::get_if<Welcome>(&out.sends[0].message));
  EXPECT_TRUE(std::get_if<Assignment>(&out.sends[1].message));
}

TEST_F(JobTableTest, KeepsJobsApart) {
  receive(1, hello("one", "a"));
  receive(2, hello("two", "b"));
  AgentStatus finished{.phase = AgentPhase::kFinished, .generation = Generation(0)};
  const ServiceOutput out = receive(1, finished);
  EXPECT_TRUE(find<End>(out, 1));
  EXPECT_FALSE(find<End>(out, 2));
  EXPECT_EQ(table_.find("two")->phase(), Membership::Phase::kRunning);
}

TEST_F(JobTableTest, RefusesAnotherProtocolAndSaysBothVersions) {
  Hello old = hello("j", "a");
  old.protocol = 99;
  old.version = "9.9";
  const ServiceOutput out = receive(1, old);
  ASSERT_TRUE(find<Refused>(out, 1));
  EXPECT_NE(find<Refused>(out, 1)->reason.find("9.9"), std::string::npos);
  EXPECT_EQ(out.closes, std::vector<AgentConnectionId>{1});
}

TEST_F(JobTableTest, RefusesWhoDoesNotSayHelloFirst) {
  EXPECT_TRUE(find<Refused>(receive(1, Heartbeat{1}), 1));
  EXPECT_TRUE(find<Refused>(receive(1, AgentStatus{}), 1));
}

TEST_F(JobTableTest, AnswersHeartbeatsWithTheirNumber) {
  receive(1, hello("j", "a"));
  const ServiceOutput out = receive(1, Heartbeat{7});
  ASSERT_TRUE(find<HeartbeatAck>(out, 1));
  EXPECT_EQ(find<HeartbeatAck>(out, 1)->number, 7u);
}

TEST_F(JobTableTest, ASecondConnectionOfAnAgentReplacesTheFirst) {
  receive(1, hello("j", "a"));
  const ServiceOutput out = receive(2, hello("j", "a"));
  EXPECT_EQ(out.closes, std::vector<AgentConnectionId>{1});
  table_.disconnected(1);  // the shell reports the close; the agent is still there
  EXPECT_FALSE(table_.is_idle());
  EXPECT_TRUE(find<HeartbeatAck>(receive(2, Heartbeat{1}), 2));
}

TEST_F(JobTableTest, ANewAgentWithTheIdOfAnEndedJobBeginsANewOne) {
  receive(1, hello("j", "a"));
  receive(1, AgentStatus{.phase = AgentPhase::kFinished, .generation = Generation(0)});
  table_.disconnected(1);
  const ServiceOutput out = receive(2, hello("j", "b"));
  ASSERT_TRUE(find<Assignment>(out, 2));
  EXPECT_EQ(find<Assignment>(out, 2)->generation, Generation(0));
}

TEST_F(JobTableTest, AnAgentThatComesBackLateHearsTheVerdictEvenIfItWasASpare) {
  const ServiceOutput first = receive(1, hello("j", "a"));
  const std::string instance = find<Welcome>(first, 1)->instance;
  receive(3, hello("j", "spare"));
  table_.disconnected(3);
  receive(1, AgentStatus{.phase = AgentPhase::kFinished, .generation = Generation(0)});
  table_.disconnected(1);
  Hello back = hello("j", "a");
  back.status = {.phase = AgentPhase::kFinished, .generation = Generation(0)};
  back.instance = instance;
  EXPECT_TRUE(find<End>(receive(2, back), 2));
  Hello spare = hello("j", "spare");
  spare.instance = instance;
  EXPECT_TRUE(find<End>(receive(4, spare), 4));
}

TEST_F(JobTableTest, AnAgentOfAnEarlierJobIsNotTakenIntoALaterOneOfTheSameId) {
  const std::string instance = find<Welcome>(receive(1, hello("j", "a")), 1)->instance;
  receive(1, AgentStatus{.phase = AgentPhase::kFinished, .generation = Generation(0)});
  table_.disconnected(1);
  receive(2, hello("j", "b"));
  Hello late = hello("j", "a");
  late.instance = instance;
  ASSERT_TRUE(find<Refused>(receive(3, late), 3));
}

// The service was restarted; newcomers may be faster than those who were there before.
TEST_F(JobTableTest, AJobOfTheServicesEarlierLifeIsRecalled) {
  Hello newcomer = hello("j", "new");
  newcomer.job.nodes = {2, 2};
  EXPECT_TRUE(find<Wait>(receive(1, newcomer), 1));
  const auto back = [&](AgentConnectionId connection, const std::string& agent, int rank) {
    Hello hello = newcomer;
    hello.node.agent_id = agent;
    hello.instance = "earlier-1";
    hello.status = {.phase = AgentPhase::kRunning, .generation = Generation(4)};
    hello.assignment =
        Assignment{.generation = Generation(4), .node_rank = NodeRank(rank), .node_count = 2};
    return receive(connection, hello);
  };
  EXPECT_FALSE(find<Refused>(back(2, "a", 0), 2));
  back(3, "b", 1);
  EXPECT_EQ(table_.find("j")->phase(), Membership::Phase::kRunning);
  EXPECT_EQ(table_.find("j")->generation(), Generation(4));

  // And once only: who comes when that job has ended is no part of the next one of its id.
  for (const AgentConnectionId connection : {2, 3}) {
    receive(connection, AgentStatus{.phase = AgentPhase::kFinished, .generation = Generation(4)});
  }
  newcomer.node.agent_id = "newer";
  receive(5, newcomer);
  EXPECT_TRUE(find<Refused>(back(6, "c", 0), 6));
}

TEST_F(JobTableTest, AConnectionSaysHelloOnce) {
  receive(1, hello("j", "a"));
  EXPECT_TRUE(find<Refused>(receive(1, hello("other", "b")), 1));
  EXPECT_FALSE(table_.find("other"));
}

TEST_F(JobTableTest, AnAgentWhoseJobIsForgottenIsToldSo) {
  receive(1, hello("j", "a"));
  receive(1, AgentStatus{.phase = AgentPhase::kFinished, .generation = Generation(0)});
  receive(1, Leave{});  // and it stays connected
  for (std::size_t i = 0; i < JobTable::kEndedJobsKept + 10; ++i) {
    const std::string name = "j" + std::to_string(i);
    receive(i + 2, hello(name, "a" + std::to_string(i)));
    receive(i + 2, AgentStatus{.phase = AgentPhase::kFinished, .generation = Generation(0)});
    table_.disconnected(i + 2);
  }
  table_.tick(now_);
  ASSERT_FALSE(table_.find("j"));
  EXPECT_TRUE(find<Refused>(receive(1, Heartbeat{1}), 1));
  table_.disconnected(1);
  EXPECT_TRUE(table_.is_idle());
}

TEST_F(JobTableTest, IsIdleWhenTheLastAgentHasGone) {
  EXPECT_TRUE(table_.is_idle());
  receive(1, hello("j", "a"));
  EXPECT_FALSE(table_.is_idle());
  table_.disconnected(1);
  EXPECT_TRUE(table_.is_idle());
}

TEST_F(JobTableTest, ForgetsTheOldestVerdictsWhenThereAreTooMany) {
  for (std::size_t i = 0; i < JobTable::kEndedJobsKept + 10; ++i) {
    const std::string name = "j" + std::to_string(i);
    receive(i, hello(name, "a" + std::to_string(i)));
    receive(i, AgentStatus{.phase = AgentPhase::kFinished, .generation = Generation(0)});
    table_.disconnected(i);
  }
  table_.tick(now_);
  EXPECT_FALSE(table_.find("j0"));
  EXPECT_TRUE(table_.find("j" + std::to_string(JobTable::kEndedJobsKept + 9)));
}

TEST_F(JobTableTest, ShowsJobsThatGoOnBeforeThoseThatHaveEnded) {
  const AgentStatus finished{.phase = AgentPhase::kFinished, .generation = Generation(0)};
  AgentConnectionId connection = 1;
  for (const char* job : {"d", "a", "c", "b"}) {
    receive(connection, hello(job, std::string("agent-") + job));
    if (*job == 'a' || *job == 'c') receive(connection, finished);
    ++connection;
  }
  std::string shown;
  for (const Membership* job : table_.jobs()) shown += job->spec().id;
  EXPECT_EQ(shown, "bdca");
}

TEST_F(JobTableTest, CountsOfAJobOutliveIt) {
  receive(1, hello("j", "a"));
  receive(1, AgentStatus{.phase = AgentPhase::kFinished, .generation = Generation(0)});
  table_.disconnected(1);
  receive(2, hello("j", "b"));
  EXPECT_EQ(table_.counts().generations_formed, 2u);
  EXPECT_EQ(table_.counts().refusals, 0u);
  receive(2, hello("j", "b"));
  EXPECT_EQ(table_.counts().refusals, 1u) << "a connection says hello once";
  EXPECT_TRUE(table_.has_agent(2));
  EXPECT_FALSE(table_.has_agent(1));
}

}  // namespace
}  // namespace ddprun
