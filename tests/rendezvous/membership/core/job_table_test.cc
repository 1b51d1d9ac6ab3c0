#include "rendezvous/membership/core/job_table.h"

#include <gtest/gtest.h>

#include <csignal>
#include <set>

#include "base/concat.h"
#include "base/seconds.h"
#include "tests/support/hello_of.h"

namespace ddprun {
namespace {

using std::chrono::seconds;

class JobTableTest : public testing::Test {
 protected:
  static Hello hello(const std::string& job, const std::string& agent) {
    Hello hello = testing_support::hello_of(job, agent);
    hello.node.host = "host-" + agent;
    return hello;
  }
  ServiceOutput receive(std::uint64_t connection, const AgentMessage& message) {
    return table_.receive({.connection = AgentConnectionId(connection)}, message, now_);
  }
  ServiceOutput leave(std::uint64_t connection) {
    return table_.disconnected(AgentConnectionId(connection), now_);
  }
  template <class T>
  static const T* find(const ServiceOutput& out, std::uint64_t connection) {
    for (const ServiceOutput::Send& send : out.sends) {
      if (send.connection.value != connection) continue;
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

TEST_F(JobTableTest, ASlowRankOfAnotherNodeIsAnEventOfTheJob) {
  const auto two_nodes = [](const std::string& agent) {
    Hello one = hello("j", agent);
    one.job.nodes = {2, 2};
    one.node.supports_steps = true;
    return one;
  };
  receive(1, two_nodes("a"));
  receive(2, two_nodes("b"));
  for (const std::uint64_t connection : {1, 2}) {
    receive(connection, AgentStatus{.phase = AgentPhase::kRunning, .generation = Generation(0)});
  }
  const auto begin_round = [&] {
    now_ += SlowSearch::kPeriod;
    // A node is heard before its lease runs out.
    for (const std::uint64_t connection : {1, 2}) receive(connection, Heartbeat{1});
    return table_.tick(now_);
  };
  std::int64_t step = 0;
  const auto round = [&] {
    const ServiceOutput asked = begin_round();
    EXPECT_TRUE(find<StepsDirective>(asked, 1) && find<StepsDirective>(asked, 2));
    const bool a_is_0 = table_.find("j")->members().at("a").node_rank == 0;
    std::vector<std::string> log;
    for (const std::uint64_t connection : {1, 2}) {
      StepReport report{.generation = Generation(0)};
      const bool is_slow = (connection == 1) != a_is_0;
      for (int i = 0; i < 64; ++i) {
        report.steps.push_back({step + i, 1300, {is_slow ? 1200U : 1000U}});
      }
      const ServiceOutput out = receive(connection, report);
      log.insert(log.end(), out.log.begin(), out.log.end());
    }
    step += 64;
    return log;
  };
  EXPECT_EQ(round().size() + round().size(), 1u);
  const Membership& job = *table_.find("j");
  EXPECT_EQ(job.slow_ranks(), 1u);
  const std::string host = job.members().at("a").node_rank == 1 ? "host-a" : "host-b";
  EXPECT_EQ(job.events().back().what,
            "job 'j': rank 1 (node " + host + ") is slow: the others wait 18 % of each step");
  const ServiceOutput begun = begin_round();
  ASSERT_TRUE(find<StepsDirective>(begun, 1) && find<StepsDirective>(begun, 2));
  EXPECT_EQ(
      find<StepsDirective>(begun, 1)->slow.size() + find<StepsDirective>(begun, 2)->slow.size(),
      1u);
  // Nothing is slow, and nothing is asked, when the generation is over.
  receive(1, AgentStatus{.phase = AgentPhase::kIdle, .generation = Generation(0)});
  EXPECT_EQ(table_.find("j")->slow_ranks(), 0u);
  EXPECT_FALSE(find<StepsDirective>(begin_round(), 1));
}

TEST_F(JobTableTest, OlderAgentsAreNotAskedForSteps) {
  for (const char* agent : {"a", "b"}) {
    Hello one = hello("j", agent);
    one.job.nodes = {2, 2};
    one.node.supports_steps = agent[0] == 'b';
    receive(static_cast<std::uint64_t>(agent[0]), one);
  }
  EXPECT_EQ(table_.find("j")->phase(), JobPhase::kRunning);
  for (int i = 0; i < 3; ++i) {
    now_ += SlowSearch::kPeriod / 2;
    EXPECT_FALSE(find<StepsDirective>(table_.tick(now_), 'b'));
    for (const std::uint64_t connection : {'a', 'b'}) receive(connection, Heartbeat{1});
  }
}

TEST_F(JobTableTest, KeepsJobsApart) {
  receive(1, hello("one", "a"));
  receive(2, hello("two", "b"));
  AgentStatus finished{.phase = AgentPhase::kFinished, .generation = Generation(0)};
  const ServiceOutput out = receive(1, finished);
  EXPECT_TRUE(find<End>(out, 1));
  EXPECT_FALSE(find<End>(out, 2));
  EXPECT_EQ(table_.find("two")->phase(), JobPhase::kRunning);
}

// The port of a service is sometimes made from the number of its job. Then agents of another job
// may come, and agents of this job may come to another service.
TEST_F(JobTableTest, AServiceForOneJobAndTheAgentsOfThatJobMeetNobodyElse) {
  table_ = JobTable(ServiceOptions{.only_job = "j", .cluster_job = "812"});
  const ServiceOutput other = receive(1, hello("k", "a"));
  ASSERT_TRUE(find<Refused>(other, 1));
  EXPECT_EQ(find<Refused>(other, 1)->reason, "this service is only for job 'j'");
  EXPECT_FALSE(find<Refused>(other, 1)->is_of_job);
  Hello own = hello("j", "b");
  own.cluster_job = "812";
  const ServiceOutput welcomed = receive(2, own);
  ASSERT_TRUE(find<Welcome>(welcomed, 2));
  EXPECT_TRUE(find<Welcome>(welcomed, 2)->own);
  Hello namesake = hello("j", "d");
  namesake.cluster_job = "10812";
  const ServiceOutput of_namesake = receive(5, namesake);
  ASSERT_TRUE(find<Refused>(of_namesake, 5)) << "the user chose the id of both";
  EXPECT_EQ(find<Refused>(of_namesake, 5)->reason,
            "this service is only for job 'j' of the scheduler's job 812");
  EXPECT_FALSE(find<Refused>(of_namesake, 5)->is_of_job);
  EXPECT_TRUE(find<Welcome>(receive(6, hello("j", "e")), 6)) << "it was given the address";
  Hello unfit = own;
  unfit.node.agent_id = "c";
  unfit.job.nodes = {7, 7};
  const ServiceOutput refused = receive(3, unfit);
  ASSERT_TRUE(find<Refused>(refused, 3));
  EXPECT_TRUE(find<Refused>(refused, 3)->is_of_job) << "it need not look elsewhere";

  table_ = JobTable(ServiceOptions{});
  const ServiceOutput open = receive(4, own);
  ASSERT_TRUE(find<Refused>(open, 4));
  EXPECT_EQ(find<Refused>(open, 4)->reason, "this service is not only for job 'j'");
  EXPECT_FALSE(find<Refused>(open, 4)->is_of_job);
}

TEST_F(JobTableTest, RefusesAnotherProtocolAndSaysBothVersions) {
  Hello old = hello("j", "a");
  old.protocol = 99;
  old.version = "9.9";
  const ServiceOutput out = receive(1, old);
  ASSERT_TRUE(find<Refused>(out, 1));
  EXPECT_EQ(
      find<Refused>(out, 1)->reason,
      "this service speaks control protocol 1, this agent (ddprun 9.9) speaks 99: use the same "
      "ddprun on all nodes");
  EXPECT_EQ(out.closes, std::vector{AgentConnectionId(1)});
  EXPECT_FALSE(find<Refused>(out, 1)->is_of_job);
  table_ = JobTable(ServiceOptions{.only_job = "j"});
  EXPECT_TRUE(find<Refused>(receive(2, old), 2)->is_of_job) << "it need not look elsewhere";
}

TEST_F(JobTableTest, RefusesWhoDoesNotSayHelloFirst) {
  EXPECT_TRUE(find<Refused>(receive(1, Heartbeat{1}), 1));
  EXPECT_TRUE(find<Refused>(receive(1, AgentStatus{}), 1));
}

TEST_F(JobTableTest, TellsAgentsHowOftenToSpeakAndHowLongToWait) {
  ServiceOptions options;
  options.times = {.lease = seconds(20), .given_heartbeat = seconds(2)};
  table_ = JobTable(options);
  const ServiceOutput out = receive(1, hello("j", "a"));
  ASSERT_TRUE(find<Welcome>(out, 1));
  EXPECT_EQ(find<Welcome>(out, 1)->heartbeat_interval, seconds(2));
  EXPECT_EQ(find<Welcome>(out, 1)->agent_patience, seconds(16));
}

TEST_F(JobTableTest, AnswersHeartbeatsWithTheirNumber) {
  receive(1, hello("j", "a"));
  const ServiceOutput out = receive(1, Heartbeat{7});
  ASSERT_TRUE(find<HeartbeatAck>(out, 1));
  EXPECT_EQ(find<HeartbeatAck>(out, 1)->number, 7u);
}

TEST_F(JobTableTest, AsksForTheRanksLessOftenIfThereAreMany) {
  constexpr int kRanks = 500;
  const auto add = [&](std::uint64_t connection) {
    Hello one = hello(concat("j", connection), concat("a", connection));
    one.node.slots = kRanks;
    receive(connection, one);
    Heartbeat beat{.number = 1, .ranks = {.generation = Generation(0)}};
    for (int rank = 0; rank < kRanks; ++rank) {
      beat.ranks.rows.push_back({.rank = Rank(rank), .local_rank = LocalRank(rank)});
    }
    receive(connection, beat);
  };
  const auto pause = [&] {
    now_ += std::chrono::seconds(1);
    for (std::uint64_t one = 1; one <= 40; ++one) receive(one, Heartbeat{2});
    return find<HeartbeatAck>(receive(1, Heartbeat{3}), 1)->ranks_every;
  };
  std::uint64_t jobs = 0;
  const auto add_up_to = [&](std::uint64_t many) {
    while (jobs < many) add(++jobs);
  };
  table_.watched("", now_);
  add_up_to(4);
  EXPECT_EQ(pause(), Duration(0)) << "2,000 ranks: every second";
  add_up_to(5);
  EXPECT_EQ(pause(), std::chrono::seconds(2));
  add_up_to(12);
  EXPECT_EQ(pause(), std::chrono::seconds(3));
  add_up_to(40);
  EXPECT_EQ(pause(), JobTable::kRanksLeastEvery);
  static_assert(JobTable::kRanksLeastEvery * 2 < Membership::kRanksLast);
}

TEST_F(JobTableTest, AsksForTheRanksOfAJobOnlyWhileItIsWatched) {
  receive(1, hello("j", "a"));
  receive(2, hello("k", "b"));
  const auto asks = [this](std::uint64_t connection) {
    return find<HeartbeatAck>(receive(connection, Heartbeat{1}), connection)->is_watched;
  };
  EXPECT_FALSE(asks(1));
  table_.watched("no such job", now_);
  table_.watched("j", now_);
  EXPECT_TRUE(asks(1));
  EXPECT_FALSE(asks(2));
  now_ += JobTable::kWatchedFor;
  EXPECT_FALSE(asks(1)) << "it was not watched since";
  table_.watched("", now_);
  EXPECT_TRUE(asks(1) && asks(2));
  now_ += JobTable::kWatchedFor;
  EXPECT_FALSE(asks(1) || asks(2));
}

TEST_F(JobTableTest, KeepsOfTheRanksOnlyThoseThatTheNodeHas) {
  Hello first = testing_support::hello_of("j", "a", {2, 2});
  Hello second = testing_support::hello_of("j", "b", {2, 2});
  first.node.slots = 2;
  second.node.slots = 7000;
  receive(1, first);
  receive(2, second);
  const auto kept = [this](const char* agent) {
    return table_.find("j")->members().at(agent).ranks.rows;
  };
  const auto rows = [](std::vector<int> ranks) {
    std::vector<RankRow> made;
    for (const int rank : ranks) made.push_back({.rank = Rank(rank), .state = "running"});
    return made;
  };
  receive(1, Heartbeat{1, {Generation(0), rows({0, 0, 1, 2, 1})}});
  EXPECT_EQ(kept("a"), rows({0, 1}));
  receive(1, Heartbeat{2, {Generation(1), rows({0})}});
  EXPECT_TRUE(kept("a").empty()) << "of another generation";
  receive(2, Heartbeat{1, {Generation(0), rows({1, 2, 999, 1000})}});
  EXPECT_EQ(kept("b"), rows({2, 999}));
  now_ += Membership::kRanksLast + seconds(1);
  receive(2, Heartbeat{2});
  EXPECT_TRUE(kept("b").empty()) << "it is not watched any more";
}

// If each of a thousand agents sent its heartbeats at its own time, they would cost three times
// as much.
TEST_F(JobTableTest, AsksAllAgentsForHeartbeatsAtTheSameFewMoments) {
  const Duration interval = ServiceOptions().times.heartbeat();
  const Duration grid = interval / ServiceOptions::kBeatTimes;
  receive(1, hello("j", "a"));
  std::set<TimePoint> moments;
  for (int i = 0; i < 1000; ++i) {
    now_ += interval / 999;
    const HeartbeatAck ack = *find<HeartbeatAck>(receive(1, Heartbeat{1}), 1);
    EXPECT_LE(std::chrono::abs(ack.next - interval), grid / 2 + grid % 2);
    moments.insert(now_ + ack.next);
  }
  EXPECT_EQ(moments.size(), ServiceOptions::kBeatTimes + 1u) << "those of an interval, both ends";
}

TEST_F(JobTableTest, ASecondConnectionOfAnAgentReplacesTheFirst) {
  receive(1, hello("j", "a"));
  const ServiceOutput out = receive(2, hello("j", "a"));
  EXPECT_EQ(out.closes, std::vector{AgentConnectionId(1)});
  leave(1);  // the server reports the close; the agent is still there
  EXPECT_FALSE(table_.is_idle());
  EXPECT_TRUE(find<HeartbeatAck>(receive(2, Heartbeat{1}), 2));
}

// Another job with that id took the job's place. No node waits for that job any more either.
TEST_F(JobTableTest, WhoComesBackToAJobThatIsForgottenDoesNotBeginItAnew) {
  const ServiceOutput first = receive(1, hello("j", "a"));
  const std::string instance = find<Welcome>(first, 1)->instance;
  receive(1, AgentStatus{.phase = AgentPhase::kFinished, .generation = Generation(0)});
  leave(1);
  Hello newcomer = hello("j", "b");
  newcomer.job.nodes = {2, 2};
  receive(2, newcomer);
  receive(2, Leave{});
  for (int i = 0; i < 3; ++i) {
    now_ += seconds(60);
    table_.tick(now_);
  }
  ASSERT_FALSE(table_.find("j"));
  Hello late = hello("j", "c");
  late.instance = instance;
  const ServiceOutput out = receive(3, late);
  ASSERT_TRUE(find<Refused>(out, 3));
  EXPECT_EQ(find<Refused>(out, 3)->reason, "its job 'j' has ended and is forgotten");
  EXPECT_FALSE(table_.find("j"));
}

TEST_F(JobTableTest, ANewAgentWithTheIdOfAnEndedJobBeginsANewOne) {
  receive(1, hello("j", "a"));
  receive(1, AgentStatus{.phase = AgentPhase::kFinished, .generation = Generation(0)});
  leave(1);
  const ServiceOutput out = receive(2, hello("j", "b"));
  ASSERT_TRUE(find<Assignment>(out, 2));
  EXPECT_EQ(find<Assignment>(out, 2)->generation, Generation(0));
}

TEST_F(JobTableTest, AnAgentThatComesBackLateHearsTheVerdictEvenIfItWasASpare) {
  const ServiceOutput first = receive(1, hello("j", "a"));
  const std::string instance = find<Welcome>(first, 1)->instance;
  receive(3, hello("j", "spare"));
  leave(3);
  receive(1, AgentStatus{.phase = AgentPhase::kFinished, .generation = Generation(0)});
  leave(1);
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
  leave(1);
  receive(2, hello("j", "b"));
  Hello late = hello("j", "a");
  late.instance = instance;
  ASSERT_TRUE(find<Refused>(receive(3, late), 3));
}

TEST_F(JobTableTest, ARefusedAgentBeginsNoJob) {
  Hello wrong = hello("j", "a");
  wrong.job.nodes = {2, 2};
  wrong.node.node_rank = 5;
  EXPECT_TRUE(find<Refused>(receive(1, wrong), 1));
  EXPECT_FALSE(table_.find("j"));
  Hello corrected = hello("j", "b");
  corrected.job.nodes = {8, 8};
  corrected.node.node_rank = 5;
  EXPECT_TRUE(find<Wait>(receive(2, corrected), 2));
}

TEST_F(JobTableTest, ARefusedAgentErasesNoVerdict) {
  Hello member = hello("j", "a");
  member.instance = find<Welcome>(receive(1, member), 1)->instance;
  receive(1, AgentStatus{.phase = AgentPhase::kFinished, .generation = Generation(0)});
  leave(1);
  Hello wrong = hello("j", "b");
  wrong.node.node_rank = 5;
  EXPECT_TRUE(find<Refused>(receive(2, wrong), 2));
  EXPECT_TRUE(find<End>(receive(3, member), 3));
}

TEST_F(JobTableTest, ARefusedAgentRecallsNothing) {
  Hello newcomer = hello("j", "new");
  newcomer.job.nodes = {2, 2};
  receive(1, newcomer);
  Hello wrong = hello("j", "a");
  wrong.instance = "earlier-1";
  EXPECT_TRUE(find<Refused>(receive(2, wrong), 2)) << "--nnodes=1";
  newcomer.node.agent_id = "newer";
  EXPECT_TRUE(find<Assignment>(receive(3, newcomer), 3)) << "no other node is waited for";
}

// The service was restarted. New nodes may connect before those that were there earlier.
TEST_F(JobTableTest, AJobOfTheServicesEarlierLifeIsRecalled) {
  Hello newcomer = hello("j", "new");
  newcomer.job.nodes = {2, 2};
  EXPECT_TRUE(find<Wait>(receive(1, newcomer), 1));
  const auto back = [&](std::uint64_t connection, const std::string& agent, int rank) {
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
  EXPECT_EQ(table_.find("j")->phase(), JobPhase::kRunning);
  EXPECT_EQ(table_.find("j")->generation(), Generation(4));

  // This happens only once. A node that comes back after that job ended does not belong to the
  // next job of its id.
  for (const std::uint64_t connection : {2, 3}) {
    receive(connection, AgentStatus{.phase = AgentPhase::kFinished, .generation = Generation(4)});
  }
  newcomer.node.agent_id = "newer";
  receive(5, newcomer);
  EXPECT_TRUE(find<Refused>(back(6, "c", 0), 6));
}

// --- what survives the service ---

// A message must not leave before the change that it reports is durable.
TEST_F(JobTableTest, WhatTellsOfAChangeNamesIt) {
  const ServiceOutput first = receive(1, hello("j", "a"));
  ASSERT_EQ(first.changes.size(), 2u);
  EXPECT_TRUE(std::get_if<ServiceBegun>(&first.changes[0].what));
  const JobChanged* changed = std::get_if<JobChanged>(&first.changes[1].what);
  ASSERT_TRUE(changed);
  EXPECT_EQ(changed->record.state.phase, JobPhase::kRunning);
  EXPECT_EQ(changed->record.state.places.size(), 1u);
  for (const ServiceOutput::Send& send : first.sends) EXPECT_EQ(send.after, 2u);

  const ServiceOutput beat = receive(1, Heartbeat{1});
  EXPECT_TRUE(beat.changes.empty());
  EXPECT_EQ(beat.sends.at(0).after, 0u) << "heartbeats wait for no disk";
  EXPECT_EQ(receive(2, hello("k", "b")).sends.at(0).after, 4u);
  const ServiceOutput again = receive(3, hello("j", "a"));
  EXPECT_TRUE(again.changes.empty());
  EXPECT_EQ(again.sends.at(0).after, 2u) << "nor does a job wait for another one's change";
}

class RestoredTableTest : public JobTableTest {
 protected:
  void keep(const ServiceOutput& out) {
    for (const ServiceOutput::Change& change : out.changes) {
      if (const auto* begun = std::get_if<ServiceBegun>(&change.what)) {
        kept_.service_id = begun->service_id;
        kept_.jobs_begun = begun->jobs_begun;
      } else if (const auto* changed = std::get_if<JobChanged>(&change.what)) {
        kept_.jobs[changed->record.state.spec.id] = changed->record;
      } else {
        kept_.jobs.erase(std::get<JobForgotten>(change.what).id);
      }
    }
  }
  void restart() { table_ = JobTable(ServiceOptions{.service_id = "later"}, kept_, now_); }

  ServiceState kept_;
};

TEST_F(RestoredTableTest, AgentsOfARunningJobComeBackAsIfNothingHadBeen) {
  table_ = JobTable(ServiceOptions{.service_id = "first"});
  const ServiceOutput out = receive(1, hello("j", "a"));
  keep(out);
  restart();
  Hello back = hello("j", "a");
  back.instance = find<Welcome>(out, 1)->instance;
  back.status = {.phase = AgentPhase::kRunning, .generation = Generation(0)};
  const ServiceOutput again = receive(7, back);
  ASSERT_TRUE(find<Welcome>(again, 7));
  EXPECT_EQ(find<Welcome>(again, 7)->instance, back.instance);
  EXPECT_FALSE(find<Stop>(again, 7));
  EXPECT_EQ(table_.find("j")->phase(), JobPhase::kRunning);
}

TEST_F(RestoredTableTest, NoInstanceIsGivenOutTwice) {
  table_ = JobTable(ServiceOptions{.service_id = "first"});
  const ServiceOutput first = receive(1, hello("j", "a"));
  keep(first);
  keep(receive(1, AgentStatus{.phase = AgentPhase::kFinished, .generation = Generation(0)}));
  restart();
  const ServiceOutput second = receive(1, hello("j", "b"));
  ASSERT_TRUE(find<Assignment>(second, 1)) << "a new job begins at once: all old ones are known";
  EXPECT_NE(find<Welcome>(second, 1)->instance, find<Welcome>(first, 1)->instance);
  Hello late = hello("j", "a");
  late.instance = find<Welcome>(first, 1)->instance;
  EXPECT_TRUE(find<Refused>(receive(2, late), 2));
}

TEST_F(RestoredTableTest, AForgottenJobIsForgottenForGood) {
  for (std::size_t i = 0; i < JobTable::kEndedJobsKept + 10; ++i) {
    keep(receive(i, hello("j" + std::to_string(i), "a" + std::to_string(i))));
    keep(receive(i, AgentStatus{.phase = AgentPhase::kFinished, .generation = Generation(0)}));
    leave(i);
  }
  keep(table_.tick(now_));
  EXPECT_EQ(kept_.jobs.size(), JobTable::kEndedJobsKept);
  restart();
  EXPECT_FALSE(table_.find("j0"));
  EXPECT_TRUE(table_.find("j" + std::to_string(JobTable::kEndedJobsKept)));
}

TEST_F(RestoredTableTest, EndedJobsKeepTheirOrderOverLivesOfTheService) {
  const AgentStatus finished{.phase = AgentPhase::kFinished, .generation = Generation(0)};
  std::uint64_t connection = 1;
  const auto run = [&](const std::string& job) {
    keep(receive(connection, hello(job, "agent-" + job)));
    keep(receive(connection, finished));
    leave(connection++);
  };
  for (const char* job : {"m", "z", "a"}) run(job);
  restart();
  for (const char* job : {"k", "b"}) run(job);
  restart();
  run("c");
  std::string shown;
  for (const Membership* job : table_.jobs()) shown += job->spec().id;
  EXPECT_EQ(shown, "cbkazm");
}

// The service ended after the job was told to end, and before it had ended.
TEST_F(RestoredTableTest, ANewJobDoesNotGetTheVerdictOfTheOneBefore) {
  table_ = JobTable(ServiceOptions{.service_id = "first"});
  Hello next = hello("j", "a");
  next.job.nodes = {2, 2};
  keep(receive(1, next));
  next.node.agent_id = "b";
  keep(receive(2, next));
  keep(receive(1, Leave{.signal = SIGTERM}));
  restart();
  table_.note_durable(0);
  next.node.agent_id = "c";
  next.job.max_restarts = 7;
  const ServiceOutput too_early = receive(3, next);
  ASSERT_TRUE(find<Silence>(too_early, 3));
  EXPECT_EQ(find<Silence>(too_early, 3)->reason, "an earlier run of job 'j' is being ended");
  EXPECT_EQ(too_early.closes, std::vector{AgentConnectionId(3)});
  ASSERT_TRUE(table_.deadline());
  now_ = *table_.deadline();
  const ServiceOutput ended = table_.tick(now_);
  EXPECT_EQ(table_.find("j")->phase(), JobPhase::kEnded);
  table_.note_durable(ended.changes.back().number);
  EXPECT_TRUE(find<Welcome>(receive(4, next), 4));
  EXPECT_EQ(table_.find("j")->phase(), JobPhase::kForming);
}

TEST_F(RestoredTableTest, SaysThatAnEarlierRunMayHaveOtherOptions) {
  table_ = JobTable(ServiceOptions{.service_id = "first"});
  Hello next = hello("j", "a");
  keep(receive(1, next));
  restart();
  next.job.max_restarts = 7;
  const ServiceOutput refused = receive(2, next);
  ASSERT_TRUE(find<Refused>(refused, 2));
  EXPECT_TRUE(find<Refused>(refused, 2)
                  ->reason.ends_with("give every node the same, or another --rdzv-id (in etcd, a "
                                     "run that did not end is kept for "
                                     "a day)"))
      << find<Refused>(refused, 2)->reason;
}

// A service without kept state may have run before. It gives agents of that run time to come
// back.
TEST_F(JobTableTest, NoJobIsBegunWithoutThoseAnEarlierLifeMayHaveWelcomed) {
  const Duration patience = seconds(4);
  table_ = JobTable(ServiceOptions{.service_id = "new", .earlier_agents_until = now_ + patience});
  EXPECT_TRUE(find<Wait>(receive(1, hello("j", "a")), 1));
  now_ += patience;
  ASSERT_TRUE(table_.deadline() && *table_.deadline() <= now_);
  EXPECT_TRUE(find<Assignment>(table_.tick(now_), 1));
  EXPECT_TRUE(find<Assignment>(receive(2, hello("k", "b")), 2)) << "once only";
}

TEST_F(JobTableTest, AdmitsNothingNewWhileItIsClosedAndServesWhatRuns) {
  const std::string instance = find<Welcome>(receive(1, hello("j", "a")), 1)->instance;
  table_.close_admission("the disk is full");
  const ServiceOutput newcomer = receive(2, hello("k", "b"));
  ASSERT_TRUE(find<Silence>(newcomer, 2));
  EXPECT_EQ(find<Silence>(newcomer, 2)->reason, "the disk is full");
  EXPECT_EQ(newcomer.closes, std::vector{AgentConnectionId(2)});
  EXPECT_FALSE(table_.find("k"));
  EXPECT_TRUE(find<Silence>(receive(3, hello("j", "c")), 3)) << "no new agent, either";
  EXPECT_TRUE(find<HeartbeatAck>(receive(1, Heartbeat{1}), 1));
  Hello back = hello("j", "a");
  back.instance = instance;
  EXPECT_TRUE(find<Welcome>(receive(4, back), 4));
  table_.close_admission(std::nullopt);
  EXPECT_TRUE(find<Welcome>(receive(5, hello("k", "b")), 5));
}

TEST_F(JobTableTest, AJobThatTheDiskRefusedHasNeverBeen) {
  const std::uint64_t safe = receive(1, hello("j", "a")).changes.back().number;
  receive(2, hello("k", "b"));
  const ServiceOutput out = table_.withdraw_after(safe, "the disk is full");
  EXPECT_TRUE(find<Silence>(out, 2));
  EXPECT_EQ(out.closes, std::vector{AgentConnectionId(2)});
  EXPECT_FALSE(find<Silence>(out, 1));
  ASSERT_EQ(out.changes.size(), 1u);
  EXPECT_TRUE(std::get_if<JobForgotten>(&out.changes[0].what));
  EXPECT_TRUE(table_.find("j"));
  EXPECT_FALSE(table_.find("k"));
  leave(2);
  const ServiceOutput again = receive(3, hello("k", "b"));
  ASSERT_TRUE(find<Assignment>(again, 3));
  EXPECT_EQ(find<Assignment>(again, 3)->restart_count, 0);
}

// Otherwise its agents would find no verdict if the disk refuses the newcomer's job.
TEST_F(JobTableTest, AnEndedJobIsReplacedWhenItsEndIsSafe) {
  table_.note_durable(0);
  receive(1, hello("j", "a"));
  const ServiceOutput ended =
      receive(1, AgentStatus{.phase = AgentPhase::kFinished, .generation = Generation(0)});
  ASSERT_FALSE(ended.changes.empty());
  const ServiceOutput too_early = receive(2, hello("j", "b"));
  EXPECT_TRUE(find<Silence>(too_early, 2));
  EXPECT_EQ(too_early.closes, std::vector{AgentConnectionId(2)});
  EXPECT_EQ(table_.find("j")->phase(), JobPhase::kEnded);
  table_.note_durable(ended.changes.back().number);
  EXPECT_TRUE(find<Assignment>(receive(3, hello("j", "b")), 3));
}

// The same outage may have cut off its other agents, whose patience may soon end.
TEST_F(JobTableTest, AKnownAgentIsWelcomedWhateverItsJobWaitsFor) {
  Hello first = hello("j", "a");
  first.job.nodes = {1, 2};
  first.job.last_call = Duration(0);
  const ServiceOutput begun = receive(1, first);
  first.instance = find<Welcome>(begun, 1)->instance;
  Hello second = first;
  second.node.agent_id = "b";
  const ServiceOutput joined = receive(2, second);
  ASSERT_FALSE(joined.changes.empty()) << "it is formed again";
  EXPECT_EQ(joined.sends.at(0).after, begun.changes.back().number);
  EXPECT_EQ(receive(3, first).sends.at(0).after, begun.changes.back().number);
}

TEST_F(JobTableTest, SaysFarewellToEveryAgent) {
  receive(1, hello("j", "a"));
  receive(2, hello("k", "b"));
  const ServiceOutput out = table_.farewell("it is restarted");
  EXPECT_TRUE(find<Silence>(out, 1) && find<Silence>(out, 2));
}

TEST_F(JobTableTest, AConnectionSaysHelloOnce) {
  receive(1, hello("j", "a"));
  EXPECT_TRUE(find<Refused>(receive(1, hello("other", "b")), 1));
  EXPECT_FALSE(table_.find("other"));
}

TEST_F(JobTableTest, AnAgentWhoseJobIsForgottenIsToldSo) {
  receive(1, hello("j", "a"));
  receive(1, AgentStatus{.phase = AgentPhase::kFinished, .generation = Generation(0)});
  receive(1, Leave{});  // the agent stays connected
  for (std::size_t i = 0; i < JobTable::kEndedJobsKept + 10; ++i) {
    const std::string name = "j" + std::to_string(i);
    receive(i + 2, hello(name, "a" + std::to_string(i)));
    receive(i + 2, AgentStatus{.phase = AgentPhase::kFinished, .generation = Generation(0)});
    leave(i + 2);
  }
  table_.tick(now_);
  ASSERT_FALSE(table_.find("j"));
  EXPECT_TRUE(find<Refused>(receive(1, Heartbeat{1}), 1));
  leave(1);
  EXPECT_TRUE(table_.is_idle());
}

TEST_F(JobTableTest, IsIdleWhenTheLastAgentHasGone) {
  EXPECT_TRUE(table_.is_idle());
  receive(1, hello("j", "a"));
  EXPECT_FALSE(table_.is_idle());
  leave(1);
  EXPECT_TRUE(table_.is_idle());
}

TEST_F(JobTableTest, ForgetsTheOldestVerdictsWhenThereAreTooMany) {
  for (std::size_t i = 0; i < JobTable::kEndedJobsKept + 10; ++i) {
    const std::string name = "j" + std::to_string(i);
    receive(i, hello(name, "a" + std::to_string(i)));
    receive(i, AgentStatus{.phase = AgentPhase::kFinished, .generation = Generation(0)});
    leave(i);
  }
  table_.tick(now_);
  EXPECT_FALSE(table_.find("j0"));
  EXPECT_TRUE(table_.find("j" + std::to_string(JobTable::kEndedJobsKept + 9)));
}

TEST_F(JobTableTest, ShowsJobsThatGoOnBeforeThoseThatHaveEnded) {
  const AgentStatus finished{.phase = AgentPhase::kFinished, .generation = Generation(0)};
  std::uint64_t connection = 1;
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
  leave(1);
  receive(2, hello("j", "b"));
  EXPECT_EQ(table_.counts().generations_formed, 2u);
  EXPECT_EQ(table_.counts().refusals, 0u);
  receive(2, hello("j", "b"));
  EXPECT_EQ(table_.counts().refusals, 1u) << "a connection says hello once";
  EXPECT_TRUE(table_.has_agent(AgentConnectionId(2)));
  EXPECT_FALSE(table_.has_agent(AgentConnectionId(1)));
}

// Otherwise anyone who may send a hello could fill the table with jobs that no node waits for.
TEST_F(JobTableTest, AJobThatAllHaveLeftBeforeItBeganIsForgottenAfterALease) {
  Hello patient = hello("j", "a");
  patient.job.nodes = {2, 2};
  patient.job.join_timeout = kMaxTime;
  const ServiceOutput welcome = receive(1, patient);
  const std::string instance = find<Welcome>(welcome, 1)->instance;
  leave(1);
  ASSERT_TRUE(table_.deadline());
  EXPECT_LE(*table_.deadline(), now_) << "it is looked at when the last one has gone";
  table_.tick(now_);
  EXPECT_EQ(*table_.deadline(), now_ + kDefaultLease);
  table_.tick(now_ + kDefaultLease - seconds(1));
  EXPECT_TRUE(table_.find("j"));
  const ServiceOutput out = table_.tick(now_ + kDefaultLease);
  ASSERT_EQ(out.changes.size(), 1u);
  EXPECT_EQ(std::get<JobForgotten>(out.changes[0].what).id, "j");
  EXPECT_FALSE(table_.find("j"));
  EXPECT_EQ(table_.deadline(), std::nullopt);
  patient.instance = instance;  // the agent was only cut off
  EXPECT_EQ(find<Welcome>(receive(2, patient), 2)->instance, instance);
}

TEST_F(JobTableTest, AJobWhoseAgentComesBackIsNotForgotten) {
  Hello first = hello("j", "a");
  first.job.nodes = {2, 2};
  receive(1, first);
  leave(1);
  table_.tick(now_);
  receive(2, first);
  table_.tick(now_ + seconds(3));
  leave(2);
  table_.tick(now_ + seconds(4));
  table_.tick(now_ + kDefaultLease + seconds(3));
  EXPECT_TRUE(table_.find("j")) << "a lease runs from the last time";
}

TEST_F(JobTableTest, AJobThatHasBegunIsNotForgottenWithItsAgents) {
  receive(1, hello("j", "a"));
  leave(1);
  table_.tick(now_);
  table_.tick(now_ + 3 * kDefaultLease);
  EXPECT_TRUE(table_.find("j"));
}

// --- the user that owns a job ---

class OwnedJobTest : public JobTableTest {
 protected:
  ServiceOutput come(std::uint64_t connection, const Hello& hello,
                     std::optional<std::uint32_t> user) {
    JobTable::Origin origin{.connection = AgentConnectionId(connection)};
    if (user) origin.user = UserId(*user);
    return table_.receive(origin, hello, now_);
  }
  static Hello one_of_two(const std::string& job, const std::string& agent) {
    Hello first = hello(job, agent);
    first.job.nodes = {2, 2};
    return first;
  }
  // Returns nullptr if the agent was admitted.
  static const Refused* refusal(const ServiceOutput& out, std::uint64_t connection) {
    return find<Refused>(out, connection);
  }
};

TEST_F(OwnedJobTest, IsTheUsersWhoComesFirstAndRootMayJoin) {
  EXPECT_FALSE(refusal(come(1, one_of_two("j", "a"), 1000), 1));
  const ServiceOutput out = come(2, one_of_two("j", "b"), 1001);
  const Refused* refused = refusal(out, 2);
  ASSERT_TRUE(refused);
  EXPECT_EQ(
      refused->reason,
      "job 'j' belongs to user 1000, but according to munge this node's agent runs as user 1001");
  EXPECT_EQ(table_.find("j")->connected_count(), 1u);
  EXPECT_FALSE(refusal(come(3, one_of_two("other", "c"), 1001), 3)) << "another job, of that user";
  EXPECT_FALSE(refusal(come(4, one_of_two("j", "d"), 0), 4)) << "root";
}

TEST_F(OwnedJobTest, OfRootIsRootsAlone) {
  come(1, one_of_two("j", "a"), 0);
  EXPECT_TRUE(refusal(come(2, one_of_two("j", "b"), 1000), 2));
}

TEST_F(OwnedJobTest, HasNoOwnerUntilAUserHasProvedTheirIdentity) {
  come(1, one_of_two("j", "a"), std::nullopt);
  const ServiceOutput out = come(2, one_of_two("j", "b"), 1000);
  EXPECT_FALSE(refusal(out, 2));
  EXPECT_TRUE(refusal(come(3, one_of_two("j", "c"), 1001), 3));
  EXPECT_FALSE(refusal(come(4, one_of_two("j", "d"), std::nullopt), 4)) << "it had a key";
}

TEST_F(OwnedJobTest, TellsNobodyElseHowItEndedAndLeavesItsIdToTheNext) {
  Hello member = hello("j", "a");
  member.instance = find<Welcome>(come(1, member, 1000), 1)->instance;
  receive(1, AgentStatus{.phase = AgentPhase::kFinished, .generation = Generation(0)});
  leave(1);
  EXPECT_TRUE(refusal(come(2, member, 1001), 2));
  EXPECT_FALSE(refusal(come(3, member, 1000), 3));
  leave(3);
  EXPECT_FALSE(refusal(come(4, one_of_two("j", "b"), 1001), 4));
  EXPECT_TRUE(refusal(come(5, one_of_two("j", "c"), 1000), 5));
}

TEST_F(OwnedJobTest, StaysHisWhenTheServiceIsRestarted) {
  ServiceState kept{.service_id = "s"};
  const ServiceOutput out = come(1, one_of_two("j", "a"), 1000);
  for (const ServiceOutput::Change& change : out.changes) {
    if (const auto* job = std::get_if<JobChanged>(&change.what)) kept.jobs["j"] = job->record;
  }
  ASSERT_EQ(kept.jobs.at("j").owner, UserId(1000));
  table_ = JobTable(ServiceOptions{}, kept, now_);
  EXPECT_TRUE(refusal(come(1, one_of_two("j", "b"), 1001), 1));
  EXPECT_FALSE(refusal(come(2, one_of_two("j", "c"), 1000), 2));
}

TEST_F(OwnedJobTest, AnOwnerThatBecomesKnownLaterIsKept) {
  come(1, one_of_two("j", "a"), std::nullopt);
  const ServiceOutput out = come(2, one_of_two("j", "b"), 1000);
  ASSERT_FALSE(out.changes.empty());
  EXPECT_EQ(std::get<JobChanged>(out.changes.back().what).record.owner, UserId(1000));
}

TEST_F(OwnedJobTest, OfAServiceThatOneUserRunsForHimselfIsHis) {
  table_ = JobTable(ServiceOptions{.owner = UserId(1000)});
  const ServiceOutput out = come(1, one_of_two("j", "a"), 1001);
  EXPECT_TRUE(refusal(out, 1));
  EXPECT_FALSE(table_.find("j"));
  EXPECT_FALSE(refusal(come(2, one_of_two("j", "b"), 0), 2));
  EXPECT_TRUE(refusal(come(3, one_of_two("j", "c"), 1001), 3));
  EXPECT_FALSE(refusal(come(4, one_of_two("j", "d"), 1000), 4));
}

}  // namespace
}  // namespace ddprun
