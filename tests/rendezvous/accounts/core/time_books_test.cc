#include "rendezvous/accounts/core/time_books.h"

#include <gtest/gtest.h>

#include <limits>

#include "base/rng.h"
#include "rendezvous/membership/core/job_table.h"
#include "tests/rendezvous/membership/core/fixture.h"
#include "tests/support/hello_of.h"

namespace ddprun {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using enum TimeCause;

constexpr TimePoint at(int s) { return TimePoint(seconds(s)); }

WorkTimes first_step(std::int64_t step, Duration ago) {
  return {.first_step = step, .since_first = ago};
}

TEST(TimeBooks, DividesAGenerationByWhatItsNodesReport) {
  TimeBooks books(at(0));
  books.form(at(10));
  books.started(at(11));
  books.started(at(12));
  WorkTimes work = first_step(1, seconds(60));
  work.checkpoint = seconds(5);
  work.stopped = seconds(3);
  books.report(work, 30, at(90));
  const JobTimes times = books.as_of(at(100));
  EXPECT_EQ(times[kWaiting], seconds(10));
  EXPECT_EQ(times[kStarting], seconds(2));
  EXPECT_EQ(times[kLoading], seconds(18));
  EXPECT_EQ(times[kTraining], seconds(62));
  EXPECT_EQ(times[kCheckpoint], seconds(5));
  EXPECT_EQ(times[kStopped], seconds(3));
  EXPECT_EQ(times.wall(), seconds(100));
}

TEST(TimeBooks, StepsThatAreDoneAgainAreLostWork) {
  TimeBooks books(at(0));
  books.form(at(0));
  books.started(at(0));
  books.leave(kRecovery, at(100), at(101));
  books.report(first_step(1, seconds(102)), 100, at(102));  // nodes report while they stop
  books.form(at(104));
  books.started(at(104));
  EXPECT_EQ(books.as_of(at(104))[kTraining], seconds(100));
  books.report(first_step(81, seconds(1)), 81, at(106));
  JobTimes times = books.as_of(at(106));
  EXPECT_EQ(times[kLostWork], seconds(20));
  EXPECT_EQ(times[kTraining], seconds(81));
  EXPECT_EQ(times[kRecovery], seconds(4));
  EXPECT_EQ(times[kLoading], seconds(1));
  // The second failure loses all of this generation and a part of the first one.
  books.report(first_step(81, seconds(10)), 90, at(115));
  books.leave(kRecovery, at(115), at(115));
  books.form(at(115));
  books.report(first_step(71, Duration(0)), 71, at(116));
  times = books.as_of(at(116));
  EXPECT_EQ(times[kLostWork], seconds(20 + 10 + 10));
  EXPECT_EQ(times[kTraining], seconds(70));
  EXPECT_EQ(times.wall(), seconds(116));
}

TEST(TimeBooks, AHangBeginsWhenTheWorkersBeganToWait) {
  TimeBooks books(at(0));
  books.form(at(0));
  books.report(first_step(0, seconds(30)), 9, at(30));
  books.hung(at(40));
  books.leave(kRecovery, at(40), at(70));
  books.form(at(75));
  const JobTimes times = books.as_of(at(75));
  EXPECT_EQ(times[kTraining], seconds(40));
  EXPECT_EQ(times[kHang], seconds(30));
  EXPECT_EQ(times[kRecovery], seconds(5));
}

TEST(TimeBooks, RecoveryEndsWhereTooFewNodesAreLeft) {
  TimeBooks books(at(0));
  books.form(at(5));
  books.wait(at(6));  // without effect while a generation runs
  books.leave(kRecovery, at(20), at(25));
  books.wait(at(30));
  books.stop(at(70));
  const JobTimes times = books.as_of(at(71));
  EXPECT_EQ(times[kWaiting], seconds(5 + 40));
  EXPECT_EQ(times[kRecovery], seconds(10));
  EXPECT_EQ(times[kStopped], seconds(1));
  EXPECT_EQ(times[kStarting], seconds(15));
}

TEST(TimeBooks, WithoutAStepAllWorkIsTraining) {
  TimeBooks books(at(0));
  books.form(at(0));
  books.started(at(1));
  EXPECT_EQ(books.as_of(at(10))[kTraining], seconds(9));
  books.report(first_step(1, seconds(4)), 1, at(10));
  EXPECT_EQ(books.as_of(at(10))[kTraining], seconds(4));
  EXPECT_EQ(books.as_of(at(10))[kLoading], seconds(5));
}

TEST(TimeBooks, AJobThatBeginsAgainHasWaitedSinceItsEnd) {
  TimeBooks books(at(0));
  books.form(at(0));
  books.end(at(50));
  EXPECT_EQ(books.as_of(at(90)).wall(), seconds(50));
  books.begin_again();
  books.form(at(60));
  EXPECT_EQ(books.as_of(at(61))[kWaiting], seconds(10));
  EXPECT_EQ(books.as_of(at(61)).restarts(), 1);
}

// Every instant has one cause, whatever the order of events and whatever agents report. At any
// time the books may move to another run of the service.
TEST(TimeBooks, AllCausesAddUpToTheWallTimeAfterAnyEvents) {
  for (std::uint64_t seed = 0; seed < 2000; ++seed) {
    Rng rng(seed);
    TimePoint now = at(1000);
    const TimePoint begin = now;
    TimeBooks books(now);
    const auto some_time = [&] { return milliseconds(rng.below(100'000)); };
    const auto some_step = [&] {
      return rng.chance(0.05) ? std::numeric_limits<std::int64_t>::min()
                              : static_cast<std::int64_t>(rng.below(1000));
    };
    for (int i = 0; i < 60; ++i) {
      now += some_time();
      switch (rng.below(9)) {
        case 0:
        case 1: books.form(now); break;
        case 2: books.started(now); break;
        case 3: {
          WorkTimes work = first_step(some_step(), some_time());
          work.checkpoint = some_time();
          work.stopped = some_time();
          books.report(work, some_step(), now);
          break;
        }
        case 4: books.hung(now - some_time()); break;
        case 5: books.leave(kRecovery, now - some_time(), now); break;
        case 6: books.wait(now); break;
        case 7: books.stop(now); break;
        default: books = TimeBooks(BooksState(books.state()), now);
      }
      const JobTimes times = books.as_of(now);
      ASSERT_EQ(times.wall(), now - begin) << "seed " << seed << ", event " << i;
      for (const Duration time : times.by_cause) ASSERT_GE(time, Duration(0)) << seed;
      ASSERT_LE(books.state().steps.size(), TimeBooks::kSpansKept);
    }
  }
}

using JobTimesTest = testing_support::MembershipFixture;

// Returns the status of a node whose workers made these steps, one a second, until now.
AgentStatus steps_of(AgentPhase phase, int generation, std::int64_t first, std::int64_t last) {
  AgentStatus status{.phase = phase, .generation = Generation(generation), .store_port = 4001};
  status.times = first_step(first, seconds(last - first + 1));
  status.step = last;
  return status;
}

TEST_F(JobTimesTest, TheVerdictSaysWhereTheTimeWent) {
  start({1, 1}, 1);
  join("a");
  live(seconds(2));
  say("a", AgentPhase::kRunning, 0);
  live(seconds(108));
  AgentStatus failed = steps_of(AgentPhase::kStopping, 0, 1, 100);
  failed.ends = {killed(0)};
  take(job_->status("id-a", failed, now_));
  live(seconds(3));
  failed.phase = AgentPhase::kIdle;
  take(job_->status("id-a", failed, now_));
  say("a", AgentPhase::kRunning, 1);
  live(seconds(51));
  take(job_->status("id-a", steps_of(AgentPhase::kFinished, 1, 91, 140), now_));
  ASSERT_TRUE(received<End>("a"));
  const std::optional<JobTimes>& times = received<End>("a")->verdict.times;
  ASSERT_TRUE(times);
  EXPECT_EQ((*times)[kStarting], seconds(2));
  EXPECT_EQ((*times)[kLoading], seconds(8 + 1));
  EXPECT_EQ((*times)[kTraining], seconds(90 + 50));
  EXPECT_EQ((*times)[kLostWork], seconds(10));
  EXPECT_EQ((*times)[kRecovery], seconds(3));
  EXPECT_EQ(times->wall(), now_ - TimePoint(seconds(1000)));
  live(seconds(9));
  EXPECT_EQ(job_->times(now_), times);
}

TEST_F(JobTimesTest, GoOnInAnotherRunOfTheService) {
  start({1, 1}, 1);
  join("a");
  say("a", AgentPhase::kRunning, 0);
  const JobState state = job_->state(now_);
  now_ += seconds(40);
  job_.emplace(state, seconds(5), now_);
  Hello again = hello_again("a", AgentPhase::kRunning, 0);
  again.assignment = state.places.front().assignment;
  again.status.times = first_step(1, seconds(30));
  take(job_->joined(again, false, now_));
  EXPECT_EQ(job_->phase(), JobPhase::kRunning);
  EXPECT_EQ((*job_->times(now_))[kLoading], seconds(10));
  EXPECT_EQ((*job_->times(now_))[kTraining], seconds(30));
}

TEST_F(JobTimesTest, AnOutageOfServiceAndNodesIsNoTraining) {
  start({1, 1}, 1);
  join("a");
  say("a", AgentPhase::kRunning, 0);
  live(seconds(600));
  take(job_->status("id-a", steps_of(AgentPhase::kRunning, 0, 1, 500), now_));
  const JobState state = job_->state(now_);
  now_ += seconds(3600);
  job_.emplace(state, seconds(5), now_);
  pass(seconds(5));  // no node comes back
  now_ += seconds(7200);
  join("b");
  AgentStatus status = steps_of(AgentPhase::kFinished, 1, 401, 500);
  say("b", AgentPhase::kRunning, 1);
  live(seconds(100));
  take(job_->status("id-b", status, now_));
  ASSERT_TRUE(received<End>("b"));
  const JobTimes& times = *received<End>("b")->verdict.times;
  EXPECT_EQ(times[kLoading], seconds(100));
  EXPECT_EQ(times[kTraining], seconds(400 + 100));
  EXPECT_EQ(times[kLostWork], seconds(100));
  EXPECT_EQ(times[kRecovery], seconds(3600 + 5));
  EXPECT_EQ(times[kWaiting], seconds(7200));
  EXPECT_EQ(times.wall(), now_ - TimePoint(seconds(1000)));
}

TEST_F(JobTimesTest, AreRecordedWhileAGenerationRuns) {
  start({1, 1}, 1);
  join("a");
  say("a", AgentPhase::kRunning, 0);
  const Membership::Landmark begun = job_->landmark();
  now_ += Membership::kBooksKeptEvery;
  take(job_->status("id-a", steps_of(AgentPhase::kRunning, 0, 1, 5), now_));
  EXPECT_NE(job_->landmark(), begun);
}

TEST_F(JobTimesTest, OfAGenerationThatIsTakenOverAreNotItsStart) {
  for (const bool has_steps : {false, true}) {
    start({1, 1}, 1);
    received_.clear();
    join("a");
    Hello again = hello_again("a", AgentPhase::kRunning, 0);
    again.assignment = *received<Assignment>("a");
    if (has_steps) again.status.times = first_step(1, seconds(30));
    start({1, 1}, 1);
    job_->expect_past(now_ + seconds(5));
    take(job_->joined(again, false, now_));
    ASSERT_EQ(job_->phase(), JobPhase::kRunning);
    live(seconds(60));
    EXPECT_EQ((*job_->times(now_))[kTraining], seconds(60)) << has_steps;
    EXPECT_EQ(job_->times(now_)->has_steps, has_steps);
  }
}

TEST_F(JobTimesTest, AStopOnRequestIsNoRecovery) {
  start({1, 1}, 1);
  join("a");
  say("a", AgentPhase::kRunning, 0);
  live(seconds(10));
  take(job_->request({.what = UserRequest::What::kStop, .by = "me"}, now_));
  live(seconds(5));
  take(job_->status("id-a", steps_of(AgentPhase::kIdle, 0, 1, 8), now_));
  ASSERT_TRUE(received<End>("a"));
  const JobTimes& times = *received<End>("a")->verdict.times;
  EXPECT_EQ(times[kStopped], seconds(5));
  EXPECT_EQ(times[kLoading], seconds(7));
  EXPECT_EQ(times[kTraining], seconds(3));
}

// Runs a job of one node that is asked to save. Then starts it again, as a requeue does, after
// `pause`. Returns the times of the second job at its start.
JobTimes times_of_second_life(bool is_saved, Duration pause) {
  JobTable table{ServiceOptions{}};
  TimePoint now = at(1000);
  const auto join = [&](std::uint64_t connection, const std::string& agent) {
    table.receive({.connection = AgentConnectionId(connection)},
                  testing_support::hello_of("job", agent, {1, 1}), now);
  };
  join(1, "a");
  now += seconds(10);
  AgentStatus end = steps_of(AgentPhase::kFinished, 0, 1, 8);
  end.asked_to_save = is_saved;
  table.receive({.connection = AgentConnectionId(1)}, end, now);
  EXPECT_EQ(table.find("job")->phase(), JobPhase::kEnded);
  now += pause;
  join(2, "b");
  return *table.find("job")->times(now);
}

TEST(JobTimesInTable, ARequeuedJobContinuesItsBooks) {
  const JobTimes requeued = times_of_second_life(true, seconds(60));
  EXPECT_EQ(requeued[kTraining], seconds(8));
  EXPECT_EQ(requeued[kWaiting], seconds(60));
  EXPECT_EQ(requeued.wall(), seconds(70));
  EXPECT_EQ(times_of_second_life(false, seconds(60)).wall(), seconds(0));
}

TEST(JobTimesInTable, TimesInChangesAreThoseOfTheCalendar) {
  const Duration calendar = std::chrono::hours(24 * 365 * 50);
  JobTable table{ServiceOptions{.calendar = calendar}};
  const ServiceOutput out = table.receive({.connection = AgentConnectionId(1)},
                                          testing_support::hello_of("job", "a", {1, 1}), at(1000));
  ServiceState past;
  for (const ServiceOutput::Change& change : out.changes) {
    if (const auto* changed = std::get_if<JobChanged>(&change.what))
      past.jobs["job"] = changed->record;
  }
  ASSERT_TRUE(past.jobs["job"].state.books);
  EXPECT_EQ(past.jobs["job"].state.books->since, at(1000) + calendar);
  // The machine was booted 100 s ago, and 30 s have passed since then.
  const JobTable next(ServiceOptions{.calendar = calendar + seconds(930)}, past, at(100));
  EXPECT_EQ(next.find("job")->times(at(100))->wall(), seconds(30));
}

}  // namespace
}  // namespace ddprun
