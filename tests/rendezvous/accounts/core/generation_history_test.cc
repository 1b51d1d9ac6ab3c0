#include "rendezvous/accounts/core/generation_history.h"

#include "rendezvous/membership/core/job_table.h"
#include "tests/rendezvous/membership/core/fixture.h"

namespace ddprun {
namespace {

using testing::HasSubstr;

using std::chrono::milliseconds;
using std::chrono::seconds;
using enum GenerationEnd;

constexpr TimePoint at(int s) { return TimePoint(seconds(s)); }

TEST(GenerationHistory, HasWhenAndWhyEachGenerationEnded) {
  GenerationHistory history;
  history.form(Generation(0), 2, 16, at(10));
  history.leave(kFailed, "a worker failed", at(20));
  history.leave(kStopped, "too late", at(21));
  history.judge(kFailed, "rank 3 failed");
  history.form(Generation(1), 1, 8, at(30));
  EXPECT_EQ(history.records(),
            (std::vector<GenerationRecord>{
                {.number = Generation(0),
                 .nodes = 2,
                 .ranks = 16,
                 .formed = at(10),
                 .ended = at(20),
                 .end = kFailed,
                 .what = "rank 3 failed"},
                {.number = Generation(1), .nodes = 1, .ranks = 8, .formed = at(30)}}));
}

TEST(GenerationHistory, OneThatWasToEndMayGoOn) {
  GenerationHistory history;
  history.go_on();
  history.form(Generation(0), 1, 1, at(1));
  const std::vector<GenerationRecord> running = history.records();
  history.leave(kInterrupted, "the service was restarted", at(2));
  history.go_on();
  EXPECT_EQ(history.records(), running);
}

TEST(GenerationHistory, KeepsTheLatestAndClipsTexts) {
  GenerationHistory history;
  for (int i = 0; i < 100; ++i) {
    history.form(Generation(i), 1, 1, at(i));
    history.leave(kResized, std::string(10'000, 'x'), at(i));
  }
  ASSERT_EQ(history.records().size(), GenerationHistory::kKept);
  EXPECT_EQ(history.records().front().number, Generation(84));
  EXPECT_LE(history.records().back().what.size(), GenerationHistory::kTextBytes);
}

TEST(GenerationHistory, WhatAnEarlierRunDidNotRecordIsNotKnown) {
  GenerationHistory history;
  history.leave(kFailed, "none was formed", at(1));
  history.judge(kFailed, "none was formed");
  EXPECT_TRUE(history.records().empty());
  history.form(Generation(3), 1, 8, at(10));
  history.recall(Generation(5), 0, 0);
  history.recall(Generation(5), 2, 16);
  history.recall(Generation(5), 7, 7);
  ASSERT_EQ(history.records().size(), 2u);
  EXPECT_EQ(history.records()[0].end, kUnknown);
  EXPECT_EQ(history.records()[0].ended, std::nullopt);
  EXPECT_EQ(history.records()[1].formed, std::nullopt);
  EXPECT_EQ(history.records()[1].end, kNone);
  EXPECT_EQ(history.records()[1].nodes, 2);
  EXPECT_EQ(history.records()[1].ranks, 16);
}

// --- of a job ---

class GenerationsTest : public testing_support::MembershipFixture {
 protected:
  const std::vector<GenerationRecord>& all() { return job_->generations(); }
  const GenerationRecord& newest() { return all().back(); }
};

TEST_F(GenerationsTest, AFailureIsThatOfTheFirstWorkerAndItsTime) {
  start({2, 2}, 1);
  join("a", 4);
  EXPECT_TRUE(all().empty());
  live(seconds(1));
  join("b", 4);
  ASSERT_EQ(all().size(), 1u);
  EXPECT_EQ(newest().nodes, 2);
  EXPECT_EQ(newest().ranks, 8);
  EXPECT_EQ(newest().formed, now_);
  EXPECT_EQ(newest().end, kNone);
  const TimePoint formed = now_;
  fail({"b", "a"}, "a", seconds(60));  // the worker of a has failed 100 ms before
  ASSERT_EQ(all().size(), 2u);
  EXPECT_EQ(all()[0].end, kFailed);
  EXPECT_EQ(all()[0].ended, formed + seconds(60) - milliseconds(100));
  EXPECT_THAT(all()[0].what, HasSubstr("rank 0 (local rank 0 on a"));
  EXPECT_EQ(all()[1].formed, now_);
  fail({"a", "b"}, "b", seconds(60));
  ASSERT_EQ(job_->phase(), JobPhase::kEnded);
  EXPECT_EQ(newest().end, kFailed);
  EXPECT_THAT(newest().what, HasSubstr("on b"));
}

TEST_F(GenerationsTest, ANodeThatJoinsOrLeavesResizes) {
  start({1, 2}, 0);
  join("a");
  live(seconds(30));
  take(job_->tick(now_));
  ASSERT_EQ(all().size(), 1u);
  say("a", AgentPhase::kRunning, 0);
  join("b");
  EXPECT_EQ(newest().end, kResized);
  EXPECT_EQ(newest().what, "a node joined");
  say("a", AgentPhase::kIdle, 0);
  ASSERT_EQ(all().size(), 2u);
  say("a", AgentPhase::kRunning, 1);
  say("b", AgentPhase::kRunning, 1);
  take(job_->left("id-b", {.signal = SIGTERM}, now_));
  EXPECT_EQ(newest().end, kResized);
  EXPECT_EQ(newest().what, "b received SIGTERM");
}

TEST_F(GenerationsTest, APersonRestartsAndStops) {
  start({1, 1}, 0);
  join("a");
  say("a", AgentPhase::kRunning, 0);
  take(job_->request({.what = UserRequest::What::kRestart, .by = "ann"}, now_));
  EXPECT_EQ(newest().end, kRestarted);
  say("a", AgentPhase::kIdle, 0);
  say("a", AgentPhase::kRunning, 1);
  take(job_->request({.what = UserRequest::What::kStop, .by = "ann"}, now_));
  EXPECT_EQ(newest().end, kStopped);
  EXPECT_THAT(newest().what, HasSubstr("ann asked for it"));
  say("a", AgentPhase::kIdle, 1);
  EXPECT_EQ(job_->phase(), JobPhase::kEnded);
  EXPECT_EQ(newest().end, kStopped);
}

TEST_F(GenerationsTest, SuccessEndsTheLastOne) {
  start({1, 1}, 0);
  join("a");
  say("a", AgentPhase::kRunning, 0);
  live(seconds(5));
  say("a", AgentPhase::kFinished, 0);
  EXPECT_EQ(newest().end, kSucceeded);
  EXPECT_EQ(newest().ended, now_);
}

TEST_F(GenerationsTest, AServiceThatKeptNoStateKnowsTheNewestWithoutItsBegin) {
  start({1, 1}, 3);
  job_->expect_past(now_ + seconds(5));
  Hello back = hello_again("a", AgentPhase::kRunning, 7);
  back.assignment = Assignment{.generation = Generation(7), .node_count = 1, .world_size = 4};
  take(job_->joined(back, false, now_));
  ASSERT_EQ(all().size(), 1u);
  EXPECT_EQ(newest(), (GenerationRecord{.number = Generation(7), .nodes = 1, .ranks = 4}));
  fail({"a"}, "a");
  ASSERT_EQ(all().size(), 2u);
  EXPECT_EQ(all()[0].formed, std::nullopt);
  EXPECT_EQ(all()[0].end, kFailed);
}

TEST_F(GenerationsTest, AServiceThatContinuesKeepsThem) {
  start({1, 1}, 3);
  join("a");
  fail({"a"}, "a");
  const std::vector<GenerationRecord> before = all();
  ASSERT_EQ(before.size(), 2u);
  const JobState state = job_->state(now_);
  live(seconds(2));
  job_.emplace(state, seconds(5), now_);
  EXPECT_EQ(all(), before);
  Hello back = hello_again("a", AgentPhase::kRunning, 1);
  back.assignment = Assignment{.generation = Generation(1), .node_count = 1, .world_size = 1};
  take(job_->joined(back, false, now_));
  ASSERT_EQ(job_->phase(), JobPhase::kRunning);
  EXPECT_EQ(all(), before);
}

TEST_F(GenerationsTest, AnOutageThatTheNodesDidNotSitOutInterrupts) {
  start({1, 1}, 3);
  join("a");
  say("a", AgentPhase::kRunning, 0);
  live(seconds(10));
  const JobState state = job_->state(now_);
  const TimePoint heard = now_;
  now_ += seconds(60);
  job_.emplace(state, seconds(5), now_);
  now_ += seconds(6);  // its agent does not come back
  take(job_->tick(now_));
  EXPECT_EQ(newest().end, kInterrupted);
  EXPECT_LE(*newest().ended, heard);
  EXPECT_EQ(newest().what, "the rendezvous service was restarted");
}

// A journal has the times of the calendar, because BootClock begins with the machine.
TEST(Generations, TimesInChangesAreThoseOfTheCalendar) {
  const Duration calendar = std::chrono::hours(24 * 365 * 50);
  JobTable table{ServiceOptions{.calendar = calendar}};
  const ServiceOutput out = table.receive({.connection = AgentConnectionId(1)},
                                          testing_support::hello_of("job", "a", {1, 1}), at(1000));
  ServiceState past;
  for (const ServiceOutput::Change& change : out.changes) {
    if (const auto* changed = std::get_if<JobChanged>(&change.what))
      past.jobs["job"] = changed->record;
  }
  ASSERT_EQ(past.jobs["job"].state.generations.size(), 1u);
  EXPECT_EQ(past.jobs["job"].state.generations[0].formed, at(1000) + calendar);
  // The machine was booted 100 s ago, and 30 s have passed since then.
  const JobTable next(ServiceOptions{.calendar = calendar + seconds(930)}, past, at(100));
  EXPECT_EQ(next.find("job")->generations().at(0).formed, at(70));
}

}  // namespace
}  // namespace ddprun
