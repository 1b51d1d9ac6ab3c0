#include "rendezvous/membership/core/membership.h"

#include "base/exit_codes.h"
#include "tests/rendezvous/membership/core/fixture.h"

namespace ddprun {
namespace {

using testing::HasSubstr;

using MembershipTest = testing_support::MembershipFixture;
using std::chrono::milliseconds;
using std::chrono::seconds;

TEST_F(MembershipTest, FormsTheFirstGenerationWhenTheLastNodeArrives) {
  start({2, 2});
  join("node1", 4);
  ASSERT_TRUE(received<Wait>("node1"));
  EXPECT_EQ(received<Wait>("node1")->reason, "1 of 2 nodes here: node1");
  join("node0", 2);
  const Assignment* first = received<Assignment>("node0");
  const Assignment* second = received<Assignment>("node1");
  ASSERT_TRUE(first && second);
  EXPECT_EQ(first->node_rank, NodeRank(0));
  EXPECT_EQ(first->first_rank, Rank(0));
  EXPECT_EQ(second->node_rank, NodeRank(1));
  EXPECT_EQ(second->first_rank, Rank(2));
  EXPECT_EQ(first->world_size, 6);
  EXPECT_EQ(first->store.port, 4000);
  EXPECT_EQ(first->restart_count, 0);
}

TEST_F(MembershipTest, RefusesWhoDoesNotAgreeOnTheJob) {
  start({2, 2}, 3);
  Hello other = hello("node1");
  other.job.nodes = {3, 3};
  ASSERT_TRUE(job_->refusal(other));
  EXPECT_THAT(*job_->refusal(other), HasSubstr("--nnodes=2"));
  other = hello("node1");
  other.job.max_restarts = 1;
  EXPECT_TRUE(job_->refusal(other));
  EXPECT_FALSE(job_->refusal(hello("node1")));
}

TEST_F(MembershipTest, RefusesANodeRankThatIsTakenOrOutOfRange) {
  start({2, 2});
  Hello first = hello("node0");
  first.node.node_rank = 0;
  take(job_->joined(first, false, now_));
  Hello second = hello("node1");
  second.node.node_rank = 0;
  ASSERT_TRUE(job_->refusal(second));
  EXPECT_THAT(*job_->refusal(second), HasSubstr("taken by node0"));
  second.node.node_rank = 2;
  EXPECT_TRUE(job_->refusal(second));
  second.node.node_rank = 1;
  EXPECT_FALSE(job_->refusal(second));
}

TEST_F(MembershipTest, EndsWellWhenEveryNodeHasFinished) {
  start({2, 2});
  join("a");
  join("b");
  say("a", AgentPhase::kRunning, 0);
  say("b", AgentPhase::kRunning, 0);
  say("a", AgentPhase::kFinished, 0);
  EXPECT_FALSE(received<End>("a"));
  say("b", AgentPhase::kFinished, 0);
  ASSERT_TRUE(received<End>("a") && received<End>("b"));
  EXPECT_TRUE(received<End>("a")->verdict.success);
  EXPECT_EQ(received<End>("b")->verdict.exit_code, 0);
}

TEST_F(MembershipTest, ACrashAfterTheEndUsesNoRestartAndTheJobEndsWithItsCode) {
  start({2, 2}, 3);
  join("a");
  join("b");
  WorkerEnd crash{.kind = EndKind::kSignaled, .code = SIGABRT, .finished = true};
  crash.host = "a";
  say("a", AgentPhase::kFinished, 0, {crash});
  EXPECT_FALSE(received<End>("a")) << "the other node goes on";
  EXPECT_FALSE(received<Stop>("b"));
  say("b", AgentPhase::kFinished, 0);
  ASSERT_TRUE(received<End>("a") && received<End>("b"));
  const Verdict& verdict = received<End>("b")->verdict;
  EXPECT_FALSE(verdict.success);
  EXPECT_EQ(verdict.exit_code, 128 + SIGABRT);
  EXPECT_EQ(verdict.restarts_used, 0);
  ASSERT_EQ(verdict.ends.size(), 1u);
  EXPECT_THAT(verdict.headline, HasSubstr("after its Context had been destroyed in good order; not "
                                          "restarted: its training is done"));
}

TEST_F(MembershipTest, WhereOneNodeWasAskedToSaveEveryNodeIsToBeStartedAgain) {
  start({2, 2});
  join("a");
  join("b");
  AgentStatus asked{.phase = AgentPhase::kRunning, .generation = Generation(0)};
  asked.asked_to_save = true;
  take(job_->status("id-b", asked, now_));
  say("a", AgentPhase::kFinished, 0);
  asked.phase = AgentPhase::kFinished;
  take(job_->status("id-b", asked, now_));
  ASSERT_TRUE(received<End>("a") && received<End>("b"));
  EXPECT_TRUE(received<End>("a")->verdict.success);
  EXPECT_EQ(received<End>("a")->verdict.exit_code, to_int(ExitCode::kSaved));
  EXPECT_THAT(received<End>("a")->verdict.headline, HasSubstr("asked to save"));
}

TEST_F(MembershipTest, ACrashAfterTheEndIsToldAlsoWhereTheJobWasAskedToSave) {
  start({1, 1});
  join("a");
  AgentStatus asked{.phase = AgentPhase::kFinished, .generation = Generation(0)};
  asked.asked_to_save = true;
  asked.ends = {{.kind = EndKind::kSignaled, .code = SIGABRT, .finished = true}};
  take(job_->status("id-a", asked, now_));
  ASSERT_TRUE(received<End>("a"));
  EXPECT_EQ(received<End>("a")->verdict.exit_code, to_int(ExitCode::kSaved));
  EXPECT_THAT(received<End>("a")->verdict.headline, HasSubstr("killed by SIGABRT"));
}

TEST_F(MembershipTest, AFailureStopsEveryoneAndTheNextGenerationWaitsForAll) {
  start({2, 2}, 1);
  join("a");
  join("b");
  say("a", AgentPhase::kRunning, 0);
  say("b", AgentPhase::kRunning, 0);
  say("b", AgentPhase::kStopping, 0, {killed(1)});
  ASSERT_TRUE(received<Stop>("a"));
  EXPECT_EQ(received<Stop>("a")->generation, Generation(0));
  say("b", AgentPhase::kIdle, 0, {killed(1)});
  EXPECT_EQ(job_->generation(), Generation(0)) << "node a has not confirmed";
  say("a", AgentPhase::kStopping, 0);
  say("a", AgentPhase::kIdle, 0);
  ASSERT_TRUE(received<Assignment>("a") && received<Assignment>("b"));
  EXPECT_EQ(received<Assignment>("a")->generation, Generation(1));
  EXPECT_EQ(received<Assignment>("b")->restart_count, 1);
  EXPECT_EQ(received<Assignment>("b")->store.port, 4001) << "a generation has a store of its own";
}

TEST_F(MembershipTest, TheBudgetIsTheJobsAndItsEndIsTheFirstFailuresCode) {
  start({2, 2}, 1);
  join("a");
  join("b");
  for (int generation = 0; generation < 2; ++generation) {
    say("a", AgentPhase::kRunning, generation);
    say("b", AgentPhase::kRunning, generation);
    // Another node fails each time. The budget is counted once for the whole job.
    const std::string guilty = generation == 0 ? "a" : "b";
    const std::string other = generation == 0 ? "b" : "a";
    say(guilty, AgentPhase::kIdle, generation, {killed(generation)});
    say(other, AgentPhase::kIdle, generation);
  }
  ASSERT_TRUE(received<End>("a") && received<End>("b"));
  const Verdict& verdict = received<End>("a")->verdict;
  EXPECT_FALSE(verdict.success);
  EXPECT_EQ(verdict.exit_code, 137);
  EXPECT_EQ(verdict.restarts_used, 1);
  ASSERT_FALSE(verdict.ends.empty());
  EXPECT_EQ(verdict.ends.front().rank, Rank(1));
}

TEST_F(MembershipTest, ASilentNodeIsLostAfterItsLeaseAndBlamedBeforeItsVictims) {
  start({1, 2}, 1);
  join("a");
  join("b");
  say("a", AgentPhase::kRunning, 0);
  say("b", AgentPhase::kRunning, 0);
  beating_ = {"a"};
  pass(milliseconds(4900));
  EXPECT_EQ(job_->phase(), JobPhase::kRunning);
  WorkerEnd echo = killed(0);
  say("a", AgentPhase::kStopping, 0, {echo});
  say("a", AgentPhase::kIdle, 0, {echo});
  EXPECT_EQ(job_->generation(), Generation(0)) << "node b may still run workers";
  pass(milliseconds(200));
  ASSERT_TRUE(received<Assignment>("a"));
  EXPECT_EQ(received<Assignment>("a")->generation, Generation(1));
  EXPECT_EQ(received<Assignment>("a")->world_size, 1);
  EXPECT_THAT(received<Assignment>("a")->reason, HasSubstr("node 1 (b) was lost"));
}

TEST_F(MembershipTest, OfNodesThatFellSilentTogetherAllAreNamed) {
  start({3, 3});
  for (const char* host : {"a", "b", "c"}) join(host);
  for (const char* host : {"a", "b", "c"}) say(host, AgentPhase::kRunning, 0);
  now_ += milliseconds(700);
  job_->heard("id-c", now_);  // b's next heartbeat was due, but both were killed
  beating_ = {"a"};
  pass(seconds(5));
  WorkerEnd victim = killed(0);
  say("a", AgentPhase::kIdle, 0, {victim});
  pass(seconds(1));
  ASSERT_TRUE(received<End>("a"));
  const Verdict& verdict = received<End>("a")->verdict;
  ASSERT_EQ(verdict.ends.size(), 3u);
  EXPECT_EQ(count_possible_firsts(verdict.ends), 2u);
  EXPECT_EQ(verdict.ends[0].host, "b");
  EXPECT_EQ(verdict.ends[1].host, "c");
}

TEST_F(MembershipTest, AJobOfFixedSizeWaitsForAReplacementOfALostNode) {
  start({2, 2}, 1);
  join("a");
  join("b");
  say("a", AgentPhase::kRunning, 0);
  say("b", AgentPhase::kRunning, 0);
  beating_ = {"a"};
  pass(seconds(6));
  ASSERT_TRUE(received<Stop>("a"));
  say("a", AgentPhase::kIdle, 0);
  EXPECT_EQ(job_->phase(), JobPhase::kForming);
  ASSERT_TRUE(received<Wait>("a")) << "it hears what is missing";
  EXPECT_EQ(received<Wait>("a")->reason, "1 of 2 nodes here: a; missing: b");
  join("c");
  ASSERT_TRUE(received<Assignment>("c"));
  EXPECT_EQ(received<Assignment>("c")->node_rank, NodeRank(1)) << "it takes the hole";
  EXPECT_EQ(received<Assignment>("a")->node_rank, NodeRank(0)) << "others keep their place";
}

TEST_F(MembershipTest, ANodeThatComesBackAfterItsLeaseIsFenced) {
  start({1, 2}, 1);
  join("a");
  join("b");
  say("a", AgentPhase::kRunning, 0);
  say("b", AgentPhase::kRunning, 0);
  beating_ = {"a"};
  pass(seconds(6));
  say("a", AgentPhase::kIdle, 0);
  say("a", AgentPhase::kRunning, 1);
  Hello late = hello("b");
  late.status.phase = AgentPhase::kRunning;
  late.status.generation = Generation(0);
  take(job_->joined(late, false, now_));
  ASSERT_TRUE(received<Stop>("b")) << "it must end the workers of the old generation";
  EXPECT_EQ(received<Stop>("b")->generation, Generation(0));
}

TEST_F(MembershipTest, AnOutageWithinTheLeaseChangesNothing) {
  start({2, 2});
  join("a");
  join("b");
  say("a", AgentPhase::kRunning, 0);
  say("b", AgentPhase::kRunning, 0);
  job_->disconnected("id-b");
  beating_ = {"a"};
  pass(seconds(3));
  Hello back = hello("b");
  back.status.phase = AgentPhase::kRunning;
  back.status.generation = Generation(0);
  received_.clear();
  take(job_->joined(back, false, now_));
  EXPECT_EQ(job_->phase(), JobPhase::kRunning);
  EXPECT_TRUE(received<Assignment>("b")) << "the same assignment again, which it knows";
  EXPECT_FALSE(received<Stop>("a"));
}

TEST_F(MembershipTest, AnAssignmentThatWasLostWithItsConnectionIsToldAgain) {
  start({2, 2});
  join("a");
  join("b");
  say("a", AgentPhase::kRunning, 0);
  job_->disconnected("id-b");
  received_.clear();
  join("b");
  ASSERT_TRUE(received<Assignment>("b"));
  EXPECT_EQ(received<Assignment>("b")->generation, Generation(0));
}

TEST_F(MembershipTest, AFailureBeforeEveryoneHasStartedWaitsForThoseOnTheWay) {
  start({2, 2}, 1);
  join("a");
  join("b");
  say("a", AgentPhase::kIdle, 0, {killed(0)});
  EXPECT_EQ(job_->generation(), Generation(0)) << "b may be starting its workers just now";
  ASSERT_TRUE(received<Stop>("b"));
  say("b", AgentPhase::kIdle, 0);
  EXPECT_EQ(job_->generation(), Generation(1));
}

TEST_F(MembershipTest, AnElasticJobHoldsALastCallAndEndsItWhenItIsFull) {
  start({1, 3});
  beating_ = {"a", "b", "c"};
  join("a");
  EXPECT_EQ(job_->phase(), JobPhase::kForming);
  pass(seconds(10));
  join("b");
  pass(seconds(19));
  EXPECT_EQ(job_->phase(), JobPhase::kForming);
  pass(seconds(2));
  EXPECT_EQ(job_->phase(), JobPhase::kRunning);
  EXPECT_EQ(received<Assignment>("a")->world_size, 2);

  start({1, 2});
  received_.clear();
  join("a");
  join("b");
  EXPECT_TRUE(received<Assignment>("a")) << "full: nobody else could come";
}

TEST_F(MembershipTest, ANewcomerMakesARoomyJobFormAgainWithoutUsingBudget) {
  start({1, 2}, 1);
  beating_ = {"a", "b"};
  join("a");
  pass(seconds(31));
  say("a", AgentPhase::kRunning, 0);
  join("b");
  ASSERT_TRUE(received<Stop>("a"));
  say("a", AgentPhase::kIdle, 0);
  ASSERT_TRUE(received<Assignment>("b"));
  EXPECT_EQ(received<Assignment>("b")->world_size, 2);
  EXPECT_EQ(received<Assignment>("b")->restart_count, 0);
}

TEST_F(MembershipTest, ASurplusNodeIsASpareAndTakesTheNextHole) {
  start({2, 2}, 1);
  join("a");
  join("b");
  join("c");
  ASSERT_TRUE(received<Wait>("c"));
  EXPECT_THAT(received<Wait>("c")->reason, HasSubstr("spare"));
  say("a", AgentPhase::kRunning, 0);
  say("b", AgentPhase::kRunning, 0);
  beating_ = {"b", "c"};
  pass(seconds(6));
  say("b", AgentPhase::kIdle, 0);
  ASSERT_TRUE(received<Assignment>("c"));
  EXPECT_EQ(received<Assignment>("c")->node_rank, NodeRank(0));
  EXPECT_EQ(received<Assignment>("b")->node_rank, NodeRank(1));
}

TEST_F(MembershipTest, ASignalToOneNodeEndsAJobOfFixedSizeEverywhere) {
  start({2, 2}, 3);
  join("a");
  join("b");
  say("a", AgentPhase::kRunning, 0);
  say("b", AgentPhase::kRunning, 0);
  AgentStatus leaving{.phase = AgentPhase::kStopping, .generation = Generation(0)};
  leaving.leaving = SIGTERM;
  take(job_->status("id-b", leaving, now_));
  ASSERT_TRUE(received<Stop>("a"));
  // The workers of a end because b leaves. This is not a failure.
  say("a", AgentPhase::kIdle, 0, {killed(0)});
  take(job_->left("id-b", Leave{SIGTERM, ""}, now_));
  ASSERT_TRUE(received<End>("a"));
  EXPECT_EQ(received<End>("a")->verdict.exit_code, 143);
  EXPECT_EQ(received<End>("a")->verdict.restarts_used, 0);
}

TEST_F(MembershipTest, ASignalToOneNodeLetsAnElasticJobGoOnWithoutIt) {
  start({1, 2}, 0);
  join("a");
  join("b");
  say("a", AgentPhase::kRunning, 0);
  say("b", AgentPhase::kRunning, 0);
  AgentStatus leaving{.phase = AgentPhase::kStopping, .generation = Generation(0)};
  leaving.leaving = SIGTERM;
  take(job_->status("id-b", leaving, now_));
  say("a", AgentPhase::kIdle, 0);
  EXPECT_EQ(job_->generation(), Generation(0)) << "b still ends its workers";
  take(job_->left("id-b", Leave{SIGTERM, ""}, now_));
  ASSERT_TRUE(received<Assignment>("a"));
  EXPECT_EQ(received<Assignment>("a")->world_size, 1);
}

// job_table_fuzz found this. Agents refused the message with the long text. A restarted service
// refused its own journal.
TEST_F(MembershipTest, ALongFarewellIsShortenedBeforeItIsToldToOthersOrKept) {
  start({2, 2});
  join("a");
  join("b");
  say("a", AgentPhase::kRunning, 0);
  take(job_->left("id-b", Leave{.reason = std::string(kMaxTextBytes, 'x')}, now_));
  ASSERT_TRUE(received<Stop>("a"));
  EXPECT_LE(received<Stop>("a")->reason.size(), kMaxTextBytes);
  say("a", AgentPhase::kIdle, 0);
  ASSERT_TRUE(received<End>("a"));
  EXPECT_LE(received<End>("a")->verdict.headline.size(), kMaxTextBytes);
  EXPECT_THAT(received<End>("a")->verdict.headline, testing::HasSubstr("was lost: xxx"));
}

TEST_F(MembershipTest, AnAgentThatEndedItsWorkersByItselfFailsTheGeneration) {
  start({2, 2}, 1);
  join("a");
  join("b");
  say("a", AgentPhase::kRunning, 0);
  say("b", AgentPhase::kRunning, 0);
  say("b", AgentPhase::kIdle, 0);
  ASSERT_TRUE(received<Stop>("a"));
}

TEST_F(MembershipTest, AFinishedNodeRunsAgainWhenAnotherFails) {
  start({2, 2}, 1);
  join("a");
  join("b");
  say("a", AgentPhase::kFinished, 0);
  say("b", AgentPhase::kRunning, 0);
  say("b", AgentPhase::kIdle, 0, {killed(1)});
  ASSERT_TRUE(received<Stop>("a"));
  say("a", AgentPhase::kIdle, 0);
  EXPECT_EQ(received<Assignment>("a")->generation, Generation(1));
}

// --- an agent's status may have any value that the codec accepts ---

TEST_F(MembershipTest, AGenerationThatNoServiceHasBegunIsNotBelieved) {
  start({1, 1}, 0);
  Hello liar = hello("a");
  liar.status.generation = Generation(kMaxGeneration);
  EXPECT_TRUE(job_->refusal(liar));
  join("a");
  take(job_->status("id-a", {.phase = AgentPhase::kIdle, .generation = Generation(kMaxGeneration)},
                    now_));
  say("a", AgentPhase::kIdle, 0, {killed(0)});
  ASSERT_TRUE(received<End>("a"));
  EXPECT_EQ(job_->generation(), Generation(0));
}

// --- what outside observers see ---

TEST_F(MembershipTest, KeepsItsLogLinesAsEventsWithTheirTimes) {
  start({1, 1}, 1);
  join("node0");
  const TimePoint failed_at = now_ += seconds(7);
  say("node0", AgentPhase::kIdle, 0, {killed(0)});
  const std::deque<JobEvent>& events = job_->events();
  std::string text;
  for (const JobEvent& event : events) text += event.what + "\n";
  EXPECT_EQ(text, log_);
  EXPECT_EQ(events.front().when, failed_at - seconds(7));
  EXPECT_EQ(events.front().what, "node0 joined job 'job' with 1 slots (1 of 1 nodes here: node0)");
  EXPECT_EQ(events.back().when, failed_at);
  EXPECT_THAT(events.back().what, HasSubstr("generation 1"));
}

TEST_F(MembershipTest, ItsEventsAreBoundedInNumberAndLength) {
  start({2, 2});
  const std::string host(kMaxNameBytes, 'h');
  for (std::size_t i = 0; i < Membership::kEventsKept + 5; ++i) {
    now_ += seconds(1);
    join(host);
    job_->disconnected("id-" + host);
  }
  EXPECT_EQ(job_->events().size(), Membership::kEventsKept);
  EXPECT_EQ(job_->events().back().when, now_);
  for (const JobEvent& event : job_->events()) {
    EXPECT_LE(event.what.size(), Membership::kEventBytes);
  }
}

TEST_F(MembershipTest, TroubleOfManyLogFilesLeavesOtherEventsThere) {
  start({2, 2});
  join("a");
  join("b");
  const std::string joined = job_->events().front().what;
  const auto says = [&](const std::string& host, const std::string& trouble) {
    const std::size_t before = job_->events().size();
    take(job_->status(
        "id-" + host,
        {.phase = AgentPhase::kRunning, .generation = Generation(0), .log_trouble = trouble},
        now_));
    return job_->events().size() > before ? job_->events().back().what : "";
  };
  EXPECT_EQ(says("a", "full"), "a: full");
  EXPECT_EQ(says("a", "full"), "") << "it is known";
  EXPECT_EQ(says("b", "full"), "b: full");
  EXPECT_EQ(says("a", ""), "");
  for (int i = 0; i < 100; ++i) says("a", i % 2 == 0 ? "full" : "7 bytes are missing");
  EXPECT_EQ(job_->events().front().what, joined);
  EXPECT_EQ(job_->members().at("id-a").status.log_trouble, "7 bytes are missing");
  now_ += Membership::kLogNotesEvery;
  EXPECT_EQ(says("b", "8 bytes are missing"), "b: 8 bytes are missing");
  EXPECT_EQ(job_->phase(), JobPhase::kRunning);
}

TEST_F(MembershipTest, SaysWhatHappenedForThoseWhoCount) {
  start({2, 2}, 1);
  join("node0");
  join("node1");
  EXPECT_EQ(counted_.generations_formed, 1);
  say("node0", AgentPhase::kIdle, 0, {killed(0)});
  say("node1", AgentPhase::kIdle, 0);
  EXPECT_EQ(counted_.restarts, 1);
  EXPECT_EQ(counted_.generations_formed, 2);
  EXPECT_EQ(counted_.lease_losses, 0);
  beating_ = {"node0"};
  pass(seconds(6));
  EXPECT_EQ(counted_.lease_losses, 1);
  EXPECT_EQ(counted_.restarts, 1) << "the budget was used up";
}

// --- restarts: Membership does what RestartBudget decides ---

TEST_F(MembershipTest, AfterQuickFailuresTheNextGenerationIsFormedWhenThePauseIsOver) {
  start({2, 2}, 9);
  beating_ = {"a", "b"};
  join("a");
  join("b");
  fail({"a", "b"}, "a", std::chrono::seconds(1));
  ASSERT_TRUE(received<Assignment>("a")) << "the first one is restarted at once";
  EXPECT_EQ(job_->generation(), Generation(1));
  fail({"a", "b"}, "b", std::chrono::seconds(1));
  ASSERT_TRUE(received<Wait>("a"));
  EXPECT_EQ(
      received<Wait>("a")->reason,
      "the workers fail within seconds of each start: the next one comes after a pause of 500 ms");
  EXPECT_EQ(job_->deadline(), now_ + RestartBudget::kFirstPause);
  pass(RestartBudget::kFirstPause - std::chrono::milliseconds(1));
  EXPECT_EQ(job_->generation(), Generation(1));
  pass(std::chrono::milliseconds(1));
  EXPECT_EQ(job_->generation(), Generation(2));
  ASSERT_TRUE(received<Assignment>("b"));
  EXPECT_EQ(job_->restarts_used(), 2);
}

TEST_F(MembershipTest, ANodeThatComesInAPauseWaitsForItsEnd) {
  start({1, 2}, 9);
  beating_ = {"a", "b"};
  join("a");
  pass(std::chrono::seconds(30));  // the last call
  fail({"a"}, "a", std::chrono::seconds(1));
  fail({"a"}, "a", std::chrono::seconds(1));
  join("b");
  ASSERT_TRUE(received<Wait>("b"));
  EXPECT_THAT(received<Wait>("b")->reason, testing::HasSubstr("after a pause of 500 ms"));
  pass(RestartBudget::kFirstPause);
  ASSERT_TRUE(received<Assignment>("b"));
  EXPECT_EQ(received<Assignment>("b")->world_size, 2);
}

TEST_F(MembershipTest, RestartsOutsideTheWindowAreFreeAlsoInAnotherLifeOfTheService) {
  JobSpec spec;
  spec.max_restarts = 1;
  spec.restart_rules.window = std::chrono::seconds(60);
  start(spec);
  join("a");
  fail({"a"}, "a");
  live(std::chrono::seconds(60));
  fail({"a"}, "a");
  ASSERT_TRUE(received<Assignment>("a"));
  EXPECT_EQ(job_->restarts_used(), 2);
  const JobState state = job_->state(now_ + std::chrono::seconds(5));
  EXPECT_EQ(state.restart_ages, std::vector<Duration>{std::chrono::seconds(5)});
  fail({"a"}, "a");
  ASSERT_TRUE(job_->verdict());
  EXPECT_THAT(job_->verdict()->headline,
              testing::HasSubstr("; not restarted: restarts used: 2 (1 of 1 within 60 s)"));
}

TEST_F(MembershipTest, WhoWantsOtherRestartsThanTheJobIsRefused) {
  start({2, 2}, 1);
  Hello other = hello("a");
  other.job.restart_rules.window = std::chrono::seconds(60);
  EXPECT_THAT(job_->refusal(other).value_or(""),
              testing::HasSubstr("another --restart-window, --no-restart-on or"));
}

}  // namespace
}  // namespace ddprun
